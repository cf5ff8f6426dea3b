package verify

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/document"
	"github.com/zc-relay/zc-relay/internal/affinity"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/internal/size"
)

// Schema names the shape of a report. Fields may be added within a number,
// nothing else.
const Schema = "zc-relay.verify/1"

// Report is everything that is printed about a run, as text or as JSON.
type Report struct {
	Schema    string    `json:"schema"`
	StartedAt time.Time `json:"started_at"`
	// RunID is what the run's blocks carry.
	RunID       string              `json:"run_id"`
	Parameters  Parameters          `json:"parameters"`
	Connection  document.Connection `json:"connection"`
	Volume      *document.Volume    `json:"volume"` // nil if it was not reached
	Environment report.Environment  `json:"environment"`
	Result      Result              `json:"result"`
	Error       *report.Failure     `json:"error,omitempty"`
}

// RunName is how a run's id is printed.
func RunName(id uint64) string { return runName(id) }

// WriteText prints the report for people: the same facts as the JSON.
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
	t.Row("passes completed", "%d in %s%s", r.PassesCompleted, size.FormatDuration(time.Duration(r.DurationNs)), interrupted)
	t.Row("blocks written", "%d (%d bytes in %d writes, %d flushes)", r.BlocksWritten, r.BytesWritten, r.Writes, r.Flushes)
	t.Row("blocks checked", "%d (%d bytes in %d reads)", r.BlocksChecked, r.BytesRead, r.Reads)
	t.Errors(r.Errors, r.ErrorsByCode)
	t.Reconnections(r.Reconnections)
	if r.Reconnections != nil {
		t.Row("lost blocks", "%d hold what was flushed before instead of what was written, as %d failed flushes have told",
			r.LostBlocks, r.LossesTold)
	}
	var kinds []string
	for _, kind := range Kinds {
		kinds = append(kinds, fmt.Sprintf("%s %d", kind, r.FindingsByKind[kind]))
	}
	t.Row("wrong blocks", "%d: %s", r.FindingCount, strings.Join(kinds, ", "))
	for i := range r.Findings {
		t.Row("", "%v", &r.Findings[i])
	}
}
