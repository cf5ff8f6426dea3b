package bench

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/document"
	"github.com/zc-relay/zc-relay/internal/affinity"
	"github.com/zc-relay/zc-relay/internal/size"
)

// WriteText prints the report for people: the same facts as the JSON.
func (r *Report) WriteText(w io.Writer) error {
	t := &text{}
	t.parameters(r)
	t.Environment(&r.Environment)
	t.measurement(r)
	t.result(r)
	_, err := io.WriteString(w, t.String())
	return err
}

// text is a report in the making.
type text struct{ document.Table }

func (t *text) parameters(r *Report) {
	p := &r.Parameters
	t.Row("started", "%s", r.StartedAt.Format(time.RFC3339))
	t.Row("load", "%s, %d %% reads, %s blocks, %squeues %d of depth %d (threads: %s)",
		p.Pattern, p.ReadPercent, size.Bytes(p.BlockSize), p.sessions(), p.Queues, p.QueueDepth, affinity.Describe(p.CPUs))
	t.Row("bounds", "%s, after %s of warm-up that is not measured; drain timeout %s", p.bounds(),
		size.FormatDuration(p.Warmup), size.FormatDuration(p.DrainTimeout))
	t.Row("range", "%s at offset %s", size.Bytes(p.Length), size.Bytes(p.Offset))
	t.Row("seed", "%d", p.Seed)
	t.Row("poll", "%s", p.Poll)
	if p.Validate {
		t.Row("validation", "%s", p.validation())
	}
	t.Reconnect(p.Reconnect)
	t.Connection(&r.Connection, r.Volume)
}

func (p *Parameters) sessions() string {
	if p.Sessions == 1 {
		return ""
	}
	return fmt.Sprintf("sessions %d, each with ", p.Sessions)
}

func (p *Parameters) bounds() string {
	var bounds []string
	if p.Runtime > 0 {
		bounds = append(bounds, size.FormatDuration(p.Runtime))
	}
	if p.OperationLimit > 0 {
		bounds = append(bounds, fmt.Sprintf("%d operations", p.OperationLimit))
	}
	return strings.Join(bounds, " or ")
}

func (p *Parameters) validation() string {
	if p.PlainContent != "" {
		return fmt.Sprintf("data is compared with %q", p.PlainContent)
	}
	return "what is written is read back and compared"
}

func (t *text) measurement(r *Report) {
	m := &r.Measurement
	t.Row("latency is", "%s, closed loop, %d significant digits, coordinated omission %s", m.Latency, m.SignificantDigits, corrected(m.OmissionCorrected))
}

func corrected(yes bool) string {
	if yes {
		return "corrected"
	}
	return "not corrected"
}

func (t *text) result(r *Report) {
	result := &r.Result
	t.WriteByte('\n')
	t.Row("IOPS", "%.0f", result.IOPS)
	t.Row("throughput", "%s (%d bytes/s)", size.FormatThroughput(float64(result.BytesPerSecond)), result.BytesPerSecond)
	t.Row("operations", "%d (%d bytes) in %s%s", result.Operations, result.Bytes, size.FormatDuration(time.Duration(result.DurationNs)), interruption(result))
	t.Errors(result.Errors, result.ErrorsByCode)
	t.Reconnections(result.Reconnections)
	if r.Parameters.Validate {
		t.Row("validated", "%d operations, %d with wrong data", result.Validated, result.Mismatches)
	}
	e := &result.Engine
	t.Row("engine hit rate", "%.3f %% (hits:misses %d:%d), %d sleeps, %d late wake-ups", e.HitRatePercent, e.Hits, e.Misses, e.Sleeps, e.LateWakeups)
	t.latencies(result)
	t.Failure(r.Error)
}

func interruption(result *Result) string {
	if result.Interrupted {
		return ", interrupted"
	}
	return ""
}

// latencies prints a line for all requests, and one for each direction if
// there were both.
func (t *text) latencies(result *Result) {
	if result.LatencyNs == nil {
		return
	}
	fmt.Fprintf(t, "\n%-12s %11s %11s %11s %11s %11s %11s %11s %11s\n", "latency µs", "min", "mean", "p50", "p90", "p99", "p99.9", "p99.99", "max")
	t.latency("all", result.LatencyNs)
	if result.Read.LatencyNs != nil && result.Write.LatencyNs != nil {
		t.latency("read", result.Read.LatencyNs)
		t.latency("write", result.Write.LatencyNs)
		t.WriteByte('\n')
		t.Row("read IOPS", "%.0f, %s", result.Read.IOPS, size.FormatThroughput(float64(result.Read.BytesPerSecond)))
		t.Row("write IOPS", "%.0f, %s", result.Write.IOPS, size.FormatThroughput(float64(result.Write.BytesPerSecond)))
	}
}

func (t *text) latency(name string, l *Latency) {
	fmt.Fprintf(t, "%-12s", name)
	for _, ns := range []int64{l.Min, l.Mean, l.P50, l.P90, l.P99, l.P999, l.P9999, l.Max} {
		fmt.Fprintf(t, " %11.3f", float64(ns)/1000)
	}
	t.WriteByte('\n')
}
