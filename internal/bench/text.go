package bench

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/zc-relay/zc-relay/internal/affinity"
	"github.com/zc-relay/zc-relay/internal/size"
)

// WriteText prints the report for people: the same facts as the JSON.
func (r *Report) WriteText(w io.Writer) error {
	t := &text{}
	t.parameters(r)
	t.environment(r)
	t.result(r)
	_, err := io.WriteString(w, t.String())
	return err
}

// text is a table of names and values.
type text struct{ strings.Builder }

func (t *text) row(name, format string, args ...any) {
	fmt.Fprintf(t, "%-18s %s\n", name, fmt.Sprintf(format, args...))
}

func (t *text) parameters(r *Report) {
	p := &r.Parameters
	t.row("started", "%s", r.StartedAt.Format(time.RFC3339))
	t.row("load", "%s, %d %% reads, %s blocks, queue depth %d, %d queues (threads: %s)",
		p.Pattern, p.ReadPercent, size.Bytes(p.BlockSize), p.QueueDepth, p.Queues, affinity.Describe(p.CPUs))
	t.row("bounds", "%s, after %s of warm-up that is not measured; drain timeout %s", p.bounds(),
		size.FormatDuration(p.Warmup), size.FormatDuration(p.DrainTimeout))
	t.row("range", "%s at offset %s", size.Bytes(p.Length), size.Bytes(p.Offset))
	t.row("seed", "%d", p.Seed)
	t.row("poll", "%s", p.Poll)
	if p.Validate {
		t.row("validation", "%s", p.validation())
	}
	t.row("channel", "%s on device %s (comch %s)", r.Connection.Channel, r.Connection.Device, r.Connection.Provider)
	if v := r.Volume; v != nil {
		t.row("volume", "%s, %s (%d bytes) in blocks of %d bytes, UUID %s", v.Name, size.Bytes(v.Size), v.Size, v.BlockSize, v.UUID)
		t.row("transport", "%s, relay %s", v.Transport, v.Relay)
	}
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

func (t *text) environment(r *Report) {
	e := &r.Environment
	t.row("environment", "zc-relay %s, %s %s, GOMAXPROCS %d", e.Version, e.GoVersion, e.Architecture, e.MaxProcessors)
	t.row("", "host %s, kernel %s, %d × %s", e.Hostname, e.Kernel, e.CPUs, e.CPUModel)
	t.row("", "NUMA nodes %s, clock %s, frequency governor %s", orNone(e.NUMANodes), orNone(e.ClockSource), orNone(e.FrequencyGovernor))
	m := &r.Measurement
	t.row("latency is", "%s, closed loop, %d significant digits, coordinated omission %s", m.Latency, m.SignificantDigits, corrected(m.OmissionCorrected))
}

func orNone(s string) string {
	if s == "" {
		return "not told"
	}
	return s
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
	t.row("IOPS", "%.0f", result.IOPS)
	t.row("throughput", "%s (%d bytes/s)", size.FormatThroughput(float64(result.BytesPerSecond)), result.BytesPerSecond)
	t.row("operations", "%d (%d bytes) in %s%s", result.Operations, result.Bytes, size.FormatDuration(time.Duration(result.DurationNs)), interruption(result))
	t.row("errors", "%d%s", result.Errors, byCode(result.ErrorsByCode))
	if r.Parameters.Validate {
		t.row("validated", "%d operations, %d with wrong data", result.Validated, result.Mismatches)
	}
	e := &result.Engine
	t.row("engine hit rate", "%.3f %% (hits:misses %d:%d), %d sleeps, %d late wake-ups", e.HitRatePercent, e.Hits, e.Misses, e.Sleeps, e.LateWakeups)
	t.latencies(result)
	if r.Error != nil {
		t.row("FAILED", "%s (%s): %s", r.Error.Phase, r.Error.Code, r.Error.Message)
	}
}

func interruption(result *Result) string {
	if result.Interrupted {
		return ", interrupted"
	}
	return ""
}

func byCode(errors map[string]uint64) string {
	var parts []string
	for _, code := range slices.Sorted(maps.Keys(errors)) {
		parts = append(parts, fmt.Sprintf("%s %d", code, errors[code]))
	}
	if parts == nil {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
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
		t.row("read IOPS", "%.0f, %s", result.Read.IOPS, size.FormatThroughput(float64(result.Read.BytesPerSecond)))
		t.row("write IOPS", "%.0f, %s", result.Write.IOPS, size.FormatThroughput(float64(result.Write.BytesPerSecond)))
	}
}

func (t *text) latency(name string, l *Latency) {
	fmt.Fprintf(t, "%-12s", name)
	for _, ns := range []int64{l.Min, l.Mean, l.P50, l.P90, l.P99, l.P999, l.P9999, l.Max} {
		fmt.Fprintf(t, " %11.3f", float64(ns)/1000)
	}
	t.WriteByte('\n')
}
