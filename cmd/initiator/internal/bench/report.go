// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/document"
	"github.com/zc-relay/zc-relay/internal/affinity"
	"github.com/zc-relay/zc-relay/internal/machinecounters"
	"github.com/zc-relay/zc-relay/internal/report"
	"github.com/zc-relay/zc-relay/internal/size"
)

// Schema names the format of a report. Within a version, fields may be added, nothing else changes.
const Schema = "zc-relay.bench/1"

// Report is everything printed about a run, as text or as JSON.
type Report struct {
	Schema    string    `json:"schema"`
	StartedAt time.Time `json:"started_at"`
	// Title and Labels are the user's; absent if there are none. DryRun means that nothing was run.
	Title       string              `json:"title,omitempty"`
	Labels      map[string]string   `json:"labels,omitempty"`
	DryRun      bool                `json:"dry_run,omitempty"`
	Parameters  Parameters          `json:"parameters"`
	Connection  document.Connection `json:"connection"`
	Volume      *document.Volume    `json:"volume"` // nil if it was not reached
	Environment report.Environment  `json:"environment"`
	Measurement Measurement         `json:"measurement"`
	Result      Result              `json:"result"`
	// Counters holds what the machine counted from the first request to the last, warm-up included;
	// nil if nothing was run.
	Counters *machinecounters.Counts `json:"machine_counters,omitempty"`
	Error    *report.Failure         `json:"error,omitempty"`
}

// Measurement describes how the latencies of a report were measured.
type Measurement struct {
	Latency            string `json:"latency"`
	SignificantDigits  int    `json:"histogram_significant_digits"`
	OmissionCorrected  bool   `json:"coordinated_omission_corrected"`
	WarmupExcluded     bool   `json:"warmup_excluded"`
	ClosedLoop         bool   `json:"closed_loop"`
	ClockReadsPerBatch int    `json:"clock_reads_per_batch"`
}

// CurrentMeasurement describes the method of this package. In an open loop, a request that has to
// wait for room in its queue is late, and its latency begins when it was due.
func CurrentMeasurement(openLoop bool) Measurement {
	m := Measurement{
		Latency: "submit to completion", SignificantDigits: significantDigits,
		WarmupExcluded: true, ClosedLoop: !openLoop, OmissionCorrected: openLoop,
		ClockReadsPerBatch: 1,
	}
	if openLoop {
		m.Latency = "due to completion"
	}
	return m
}

// Result holds the measurements of a run: of the requests submitted after the warm-up, from the
// first submission to the last completion. Errors covers the whole run.
type Result struct {
	// Operations counts the requests that succeeded.
	Operations     uint64    `json:"operations"`
	Errors         uint64    `json:"errors"`
	IOPS           float64   `json:"iops"`
	BytesPerSecond uint64    `json:"bytes_per_second"`
	Bytes          uint64    `json:"bytes"`
	DurationNs     int64     `json:"duration_ns"`
	LatencyNs      *Latency  `json:"latency_ns"` // nil if nothing was measured
	Read           Direction `json:"read"`
	Write          Direction `json:"write"`
	// ErrorsByCode counts failed requests by the name of the status code.
	ErrorsByCode map[string]uint64 `json:"errors_by_code"`
	// ErrorsByCause counts those of them whose cause at the target is known.
	ErrorsByCause map[string]uint64 `json:"errors_by_cause,omitempty"`
	// Validated counts requests whose data was compared, Mismatches those with wrong data.
	Validated  uint64 `json:"validated"`
	Mismatches uint64 `json:"mismatches"`
	// Interrupted means that the run was ended early.
	Interrupted bool   `json:"interrupted"`
	Engine      Engine `json:"progress_engine"`
	// Reconnections is nil unless the volume is reopened after a loss.
	Reconnections *document.Reconnections `json:"reconnections,omitempty"`
}

// Direction is the part of a result for reads, or for writes.
type Direction struct {
	Operations     uint64   `json:"operations"`
	IOPS           float64  `json:"iops"`
	BytesPerSecond uint64   `json:"bytes_per_second"`
	LatencyNs      *Latency `json:"latency_ns"`
}

// Latency is the time from submission to completion, in nanoseconds.
type Latency struct {
	Min   int64 `json:"min"`
	Mean  int64 `json:"mean"`
	P50   int64 `json:"p50"`
	P90   int64 `json:"p90"`
	P99   int64 `json:"p99"`
	P999  int64 `json:"p99_9"`
	P9999 int64 `json:"p99_99"`
	Max   int64 `json:"max"`
}

// Engine counts what the progress engines of all threads did. A hit is a poll that found work.
type Engine struct {
	Hits           uint64  `json:"hits"`
	Misses         uint64  `json:"misses"`
	HitRatePercent float64 `json:"hit_rate_percent"`
	Sleeps         uint64  `json:"sleeps"`
	LateWakeups    uint64  `json:"late_wakeups"`
}

// NoResult returns the result of a run that has not begun.
func NoResult() Result { return Result{ErrorsByCode: map[string]uint64{}} }

// WriteText prints the report for people, with the same facts as the JSON.
func (r *Report) WriteText(w io.Writer) error {
	t := &text{}
	t.parameters(r)
	if r.DryRun {
		t.Row("dry run", "nothing was run, and no relay was asked")
		_, err := io.WriteString(w, t.String())
		return err
	}
	t.Environment(&r.Environment)
	t.measurement(r)
	t.result(r)
	_, err := io.WriteString(w, t.String())
	return err
}

// text is a report under construction.
type text struct{ document.Table }

func (t *text) parameters(r *Report) {
	p := &r.Parameters
	if r.Title != "" {
		t.Row("title", "%s", r.Title)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Labels)) {
		t.Row("label", "%s=%s", name, r.Labels[name])
	}
	t.Row("started", "%s", r.StartedAt.Format(time.RFC3339))
	t.Row("load", "%s, %d %% reads, %s blocks, %squeues %d of depth %d (threads: %s)",
		p.Pattern, p.ReadPercent, size.Bytes(p.BlockSize), p.sessions(), p.Queues, p.QueueDepth,
		affinity.Describe(p.CPUs))
	t.Row("bounds", "%s, %s; drain timeout %s", p.bounds(), p.warmup(),
		size.FormatDuration(p.DrainTimeout))
	if p.BatchSize > 0 {
		t.Row("batches", "a queue is flushed after %d requests", p.BatchSize)
	}
	if p.Length > 0 {
		t.Row("range", "%s at offset %s", size.Bytes(p.Length), size.Bytes(p.Offset))
	} else {
		t.Row("range", "from offset %s to the end of the volume", size.Bytes(p.Offset))
	}
	if p.InPlace {
		t.Row("in place", "each request that can be outstanding has a block to itself")
	}
	t.Row("seed", "%d", p.Seed)
	t.Row("poll", "%s", p.Poll)
	if p.Rate > 0 {
		t.Row("rate", "%d requests per second, due at fixed times", p.Rate)
	}
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

func (p *Parameters) warmup() string {
	if p.Warmup == 0 {
		return "without warm-up"
	}
	return "after " + size.FormatDuration(p.Warmup) + " of warm-up that is not measured"
}

func (p *Parameters) validation() string {
	if p.PlainContent != "" {
		return fmt.Sprintf("data is compared with %q", p.PlainContent)
	}
	return "writes are read back and compared"
}

func (t *text) measurement(r *Report) {
	m := &r.Measurement
	t.Row("latency is", "%s, %s loop, %d significant digits, coordinated omission %s",
		m.Latency, loop(m.ClosedLoop), m.SignificantDigits, corrected(m.OmissionCorrected))
}

func loop(closed bool) string {
	if closed {
		return "closed"
	}
	return "open"
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
	t.Row("IOPS", "%.0f%s", result.IOPS, shortfall(result.IOPS, r.Parameters.Rate))
	t.Row("throughput", "%s (%d bytes/s)", size.FormatThroughput(float64(result.BytesPerSecond)),
		result.BytesPerSecond)
	t.Row("operations", "%d (%d bytes) in %s%s", result.Operations, result.Bytes,
		size.FormatDuration(time.Duration(result.DurationNs)), interruption(result))
	t.Errors(result.Errors, result.ErrorsByCode, result.ErrorsByCause)
	t.Reconnections(result.Reconnections)
	if r.Parameters.Validate {
		t.Row("validated", "%d operations, %d with wrong data", result.Validated, result.Mismatches)
	}
	e := &result.Engine
	hitRate := "nothing was polled"
	if e.Hits+e.Misses > 0 {
		hitRate = fmt.Sprintf("%.3f %% (hits:misses %d:%d)", e.HitRatePercent, e.Hits, e.Misses)
	}
	t.Row("engine hit rate", "%s, %d sleeps, %d late wake-ups", hitRate, e.Sleeps, e.LateWakeups)
	t.latencies(result)
	t.counters(r.Counters)
	t.Failure(r.Error)
}

// rateTolerance is how much of a rate may be missing: a run does not end exactly when a request is
// due.
const rateTolerance = 0.05

// shortfall says that an open loop has not reached its rate. Its latencies are then mostly the time
// that requests have waited for room, and depend on how long the run was.
func shortfall(iops float64, rate uint64) string {
	if rate == 0 || iops == 0 || iops >= float64(rate)*(1-rateTolerance) {
		return ""
	}
	return fmt.Sprintf(", %.1f %% of the rate: too slow for it, so the latencies grow with the runtime",
		iops/float64(rate)*100)
}

// counters prints what the machine counted.
func (t *text) counters(c *machinecounters.Counts) {
	if c == nil {
		return
	}
	t.WriteByte('\n')
	t.counts("process", c.Process)
	t.counts("processors", c.Processors)
	for _, p := range c.Ports {
		name := fmt.Sprintf("%s/%d", p.Device, p.Port)
		t.counts(name, p.Counters)
		t.counts(name+" hw", p.HWCounters)
	}
}

// counts prints the counters of one source, by name.
func (t *text) counts(source string, counts map[string]uint64) {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		text := strconv.FormatUint(counts[name], 10)
		name, isTime := strings.CutSuffix(name, "_ns")
		if isTime {
			text = size.FormatDuration(time.Duration(counts[name+"_ns"]))
		}
		all = append(all, name+" "+text)
	}
	if all != nil {
		t.Row(source, "%s", strings.Join(all, ", "))
	}
}

func interruption(result *Result) string {
	if result.Interrupted {
		return ", interrupted"
	}
	return ""
}

// latencies prints one line for all requests, and one for each direction if there were both.
func (t *text) latencies(result *Result) {
	if result.LatencyNs == nil {
		return
	}
	t.latencyHeader()
	t.latency("all", result.LatencyNs)
	if result.Read.LatencyNs != nil && result.Write.LatencyNs != nil {
		t.latency("read", result.Read.LatencyNs)
		t.latency("write", result.Write.LatencyNs)
		t.WriteByte('\n')
		t.Row("read IOPS", "%.0f, %s", result.Read.IOPS,
			size.FormatThroughput(float64(result.Read.BytesPerSecond)))
		t.Row("write IOPS", "%.0f, %s", result.Write.IOPS,
			size.FormatThroughput(float64(result.Write.BytesPerSecond)))
	}
}

func (t *text) latencyHeader() {
	fmt.Fprintf(t, "\n%-12s %11s %11s %11s %11s %11s %11s %11s %11s\n", "latency µs", "min", "mean",
		"p50", "p90", "p99", "p99.9", "p99.99", "max")
}

func (t *text) latency(name string, l *Latency) {
	fmt.Fprintf(t, "%-12s", name)
	for _, ns := range []int64{l.Min, l.Mean, l.P50, l.P90, l.P99, l.P999, l.P9999, l.Max} {
		fmt.Fprintf(t, " %11.3f", float64(ns)/1000)
	}
	t.WriteByte('\n')
}
