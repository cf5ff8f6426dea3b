// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/document"
	"github.com/zc-relay/zc-relay/cmd/initiator/internal/supervisor"
	"github.com/zc-relay/zc-relay/internal/affinity"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/client"
)

// Schema names the format of a report. Within a version, fields may be added, nothing else changes.
const Schema = "zc-relay.verify/1"

// Report is everything printed about a run, as text or as JSON.
type Report struct {
	Schema    string    `json:"schema"`
	StartedAt time.Time `json:"started_at"`
	// RunID identifies the run in its blocks.
	RunID       string              `json:"run_id"`
	Parameters  Parameters          `json:"parameters"`
	Connection  document.Connection `json:"connection"`
	Volume      *document.Volume    `json:"volume"` // nil if it was not reached
	Environment report.Environment  `json:"environment"`
	Result      Result              `json:"result"`
	Error       *report.Failure     `json:"error,omitempty"`
}

// RunName returns the printed form of a run's id.
func RunName(id uint64) string { return runName(id) }

// WriteText prints the report for people, with the same facts as the JSON.
func (r *Report) WriteText(w io.Writer) error {
	t := &document.Table{}
	p := &r.Parameters
	t.Row("started", "%s", r.StartedAt.Format(time.RFC3339))
	t.Row("run", "%s, seed %d", r.RunID, p.Seed)
	t.Row("load", "IO of up to %s, queues %d of depth %d (threads: %s)",
		size.Bytes(p.MaxIOSize), p.Queues, p.QueueDepth, affinity.Describe(p.CPUs))
	t.Row("bounds", "%s; drain timeout %s", p.bounds(), size.FormatDuration(p.DrainTimeout))
	t.Row("range", "%s at offset %s", size.Bytes(p.Length), size.Bytes(p.Offset))
	t.Row("poll", "%s", p.Poll)
	t.Reconnect(p.Reconnect)
	t.Connection(&r.Connection, r.Volume)
	t.Environment(&r.Environment)
	t.WriteByte('\n')
	r.Result.write(t)
	t.Failure(r.Error)
	_, err := io.WriteString(w, t.String())
	return err
}

func (p *Parameters) bounds() string {
	var bounds []string
	if p.Runtime > 0 {
		bounds = append(bounds, size.FormatDuration(p.Runtime))
	}
	if p.Passes > 0 {
		bounds = append(bounds, fmt.Sprintf("%d passes", p.Passes))
	}
	return strings.Join(bounds, " or ")
}

func (r *Result) write(t *document.Table) {
	interrupted := ""
	if r.Interrupted {
		interrupted = ", interrupted"
	}
	t.Row("passes completed", "%d in %s%s", r.PassesCompleted,
		size.FormatDuration(time.Duration(r.DurationNs)), interrupted)
	t.Row("blocks written", "%d (%d bytes in %d writes, %d flushes)", r.BlocksWritten,
		r.BytesWritten, r.Writes, r.Flushes)
	t.Row("blocks checked", "%d (%d bytes in %d reads)", r.BlocksChecked, r.BytesRead, r.Reads)
	t.Errors(r.Errors, r.ErrorsByCode, r.ErrorsByCause)
	t.Reconnections(r.Reconnections)
	if r.Reconnections != nil {
		t.Row("lost blocks",
			"%d hold the flushed content instead of the last write, as %d failed flushes reported",
			r.LostBlocks, r.LossesReported)
	}
	var counts []string
	for _, kind := range kinds {
		counts = append(counts, fmt.Sprintf("%s %d", kind, r.FindingsByKind[kind]))
	}
	t.Row("wrong blocks", "%d: %s", r.FindingCount, strings.Join(counts, ", "))
	for i := range r.Findings {
		t.Row("", "%v", &r.Findings[i])
	}
}

// Result holds the findings of a run.
type Result struct {
	// PassesCompleted is the number of times that the whole range was written and read.
	PassesCompleted uint32 `json:"passes_completed"`
	DurationNs      int64  `json:"duration_ns"`
	// Reads, Writes and Flushes count successful requests, Errors the failed ones.
	Reads   uint64 `json:"reads"`
	Writes  uint64 `json:"writes"`
	Flushes uint64 `json:"flushes"`
	Errors  uint64 `json:"errors"`
	// ErrorsByCode counts failed requests by the name of the status code.
	ErrorsByCode map[string]uint64 `json:"errors_by_code"`
	// ErrorsByCause counts those of them whose cause at the target is known.
	ErrorsByCause map[string]uint64 `json:"errors_by_cause,omitempty"`
	BytesWritten  uint64            `json:"bytes_written"`
	BytesRead     uint64            `json:"bytes_read"`
	BlocksWritten uint64            `json:"blocks_written"`
	// BlocksChecked counts blocks that were read and whose expected content was known.
	BlocksChecked uint64 `json:"blocks_checked"`
	// FindingCount is the number of wrong blocks, FindingsByKind the number of each kind. Findings
	// holds the first of them.
	FindingCount   uint64          `json:"finding_count"`
	FindingsByKind map[Kind]uint64 `json:"findings_by_kind"`
	Findings       []Finding       `json:"findings"`
	// Interrupted means that the run was ended early.
	Interrupted bool `json:"interrupted"`
	// Reconnections is nil unless the volume is reopened after a loss.
	Reconnections *document.Reconnections `json:"reconnections,omitempty"`
	// LossesReported counts flushes that failed to report that writes may be lost because the
	// target restarted. LostBlocks counts blocks that then held their flushed content; they are not
	// findings.
	LossesReported uint64 `json:"losses_told,omitempty"`
	LostBlocks     uint64 `json:"lost_blocks,omitempty"`
}

// NoResult returns the result of a run that has not begun.
func NoResult() Result {
	r := Result{ErrorsByCode: map[string]uint64{}, FindingsByKind: map[Kind]uint64{},
		Findings: []Finding{}}
	for _, kind := range kinds {
		r.FindingsByKind[kind] = 0
	}
	return r
}

// resultOf sums up the counts of all workers.
func resultOf(c *Config, run *supervisor.Supervisor, workers []*worker) Result {
	r := NoResult()
	r.PassesCompleted, r.DurationNs, r.Interrupted = workers[0].planner.completed, run.NowNs(),
		run.Interrupted()
	var findings []timedFinding
	var failures document.Failures
	for _, w := range workers {
		failures.Merge(&w.tally.failures)
		r.PassesCompleted = min(r.PassesCompleted, w.planner.completed)
		r.add(&w.tally, uint64(c.BlockSize))
		findings = append(findings, w.tally.findings...)
	}
	r.Errors, r.ErrorsByCode, r.ErrorsByCause = failures.Count, failures.ByCode(),
		failures.ByCause()
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
	r.LossesReported += t.lossesReported
	r.LostBlocks += t.lostBlocks
	r.FindingCount += t.findingCount
	for kind, count := range t.findingsKinds {
		r.FindingsByKind[kind] += count
	}
}

// findingsKept is the number of findings that each thread keeps; it counts all of them.
const findingsKept = 16

// tally holds the counts of one thread. Only that thread writes it. Others may read the published
// values at any time, and everything after the thread has ended.
type tally struct {
	writes, reads, flushes                   uint64
	blocksWritten, blocksRead, blocksChecked uint64

	repeated, lossesReported, lostBlocks uint64

	failures   document.Failures
	firstError error

	findingCount  uint64
	findingsKinds map[Kind]uint64
	findings      []timedFinding

	publishedWritten  atomic.Uint64
	publishedChecked  atomic.Uint64
	publishedProblems atomic.Uint64
}

// timedFinding is a finding with its time, to order the findings of several threads.
type timedFinding struct {
	Finding
	atNs int64
}

// publish makes the thread's progress visible to others.
func (t *tally) publish() {
	t.publishedWritten.Store(t.blocksWritten)
	t.publishedChecked.Store(t.blocksChecked)
	t.publishedProblems.Store(t.failures.Count + t.findingCount)
}

// fail counts a failed request. It calls describe for the first.
func (t *tally) fail(result *client.Result, describe func() error) {
	if t.firstError == nil {
		t.firstError = describe()
	}
	t.failures.Add(result)
}

func (t *tally) find(f Finding, atNs int64) {
	t.findingCount++
	if t.findingsKinds == nil {
		t.findingsKinds = map[Kind]uint64{}
	}
	t.findingsKinds[f.Kind]++
	if len(t.findings) < findingsKept {
		t.findings = append(t.findings, timedFinding{f, atNs})
	}
}
