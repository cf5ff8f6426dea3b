package verify

import (
	"slices"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/document"
	"github.com/zc-relay/zc-relay/cmd/initiator/internal/supervisor"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Result is what a run has found out.
type Result struct {
	// PassesCompleted is how often all of the range was written and read.
	PassesCompleted uint32 `json:"passes_completed"`
	DurationNs      int64  `json:"duration_ns"`
	// Reads, Writes and Flushes are the requests that succeeded, the others
	// are Errors.
	Reads   uint64 `json:"reads"`
	Writes  uint64 `json:"writes"`
	Flushes uint64 `json:"flushes"`
	Errors  uint64 `json:"errors"`
	// ErrorsByCode counts failed requests by the name of the status code.
	ErrorsByCode  map[string]uint64 `json:"errors_by_code"`
	BytesWritten  uint64            `json:"bytes_written"`
	BytesRead     uint64            `json:"bytes_read"`
	BlocksWritten uint64            `json:"blocks_written"`
	// BlocksChecked are those read whose content was known.
	BlocksChecked uint64 `json:"blocks_checked"`
	// FindingCount is the number of wrong blocks, FindingsByKind how they are
	// wrong, and Findings the first of them.
	FindingCount   uint64          `json:"finding_count"`
	FindingsByKind map[Kind]uint64 `json:"findings_by_kind"`
	Findings       []Finding       `json:"findings"`
	// Interrupted tells that the run was ended before its time.
	Interrupted bool `json:"interrupted"`
	// Reconnections is nil unless the volume is reopened when it is lost.
	Reconnections *document.Reconnections `json:"reconnections,omitempty"`
	// LossesTold is how many flushes have failed to tell that writes may be
	// lost because the target has restarted. LostBlocks is how many blocks
	// then were found to be as they had been flushed before; they are no
	// findings.
	LossesTold uint64 `json:"losses_told,omitempty"`
	LostBlocks uint64 `json:"lost_blocks,omitempty"`
}

// NoResult is that of a run that has not begun.
func NoResult() Result {
	r := Result{ErrorsByCode: map[string]uint64{}, FindingsByKind: map[Kind]uint64{}, Findings: []Finding{}}
	for _, kind := range Kinds {
		r.FindingsByKind[kind] = 0
	}
	return r
}

// resultOf sums up what the workers of a run have done.
func resultOf(c *Config, run *supervisor.Supervisor, workers []*worker) Result {
	r := NoResult()
	r.PassesCompleted, r.DurationNs, r.Interrupted = workers[0].planner.completed, run.NowNs(), run.Interrupted()
	var findings []timedFinding
	for _, w := range workers {
		r.PassesCompleted = min(r.PassesCompleted, w.planner.completed)
		r.add(&w.tally, uint64(c.BlockSize))
		findings = append(findings, w.tally.findings...)
	}
	if c.Reconnect {
		r.Reconnections = &document.Reconnections{}
		for _, w := range workers {
			r.Reconnections.RepeatedRequests += w.tally.repeated
		}
	}
	slices.SortStableFunc(findings, func(a, b timedFinding) int { return int(a.atNs - b.atNs) })
	for _, f := range findings[:min(len(findings), findingsKept)] {
		r.Findings = append(r.Findings, f.Finding)
	}
	return r
}

func (r *Result) add(t *tally, blockSize uint64) {
	r.Reads += t.reads
	r.Writes += t.writes
	r.Flushes += t.flushes
	r.BlocksWritten += t.blocksWritten
	r.BytesWritten += t.blocksWritten * blockSize
	r.BytesRead += t.blocksRead * blockSize
	r.BlocksChecked += t.blocksChecked
	r.Errors += t.errorCount
	for code, count := range t.errors {
		if count > 0 {
			r.ErrorsByCode[status.Code(code).String()] += count
		}
	}
	r.LossesTold += t.lossesTold
	r.LostBlocks += t.lostBlocks
	r.FindingCount += t.findingCount
	for kind, count := range t.findingsKinds {
		r.FindingsByKind[kind] += count
	}
}
