package bench

import (
	"math"
	"time"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/document"
	"github.com/zc-relay/zc-relay/cmd/initiator/internal/supervisor"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Result is what a run measured: requests that were submitted after the
// warm-up, from the first to the last completion. Errors are those of the
// whole run.
type Result struct {
	// Operations is the number of requests that succeeded.
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
	// Validated is how many requests had their data compared, Mismatches how
	// many of those had other data than they must.
	Validated  uint64 `json:"validated"`
	Mismatches uint64 `json:"mismatches"`
	// Interrupted tells that the run was ended before its time.
	Interrupted bool   `json:"interrupted"`
	Engine      Engine `json:"progress_engine"`
	// Reconnections is nil unless the volume is reopened when it is lost.
	Reconnections *document.Reconnections `json:"reconnections,omitempty"`
}

// Direction is the part of a result that is reads, or writes.
type Direction struct {
	Operations     uint64   `json:"operations"`
	IOPS           float64  `json:"iops"`
	BytesPerSecond uint64   `json:"bytes_per_second"`
	LatencyNs      *Latency `json:"latency_ns"`
}

// Latency is from submit to completion, in nanoseconds.
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

// Engine is what the progress engines of all threads did. A hit is a poll
// that found work.
type Engine struct {
	Hits           uint64  `json:"hits"`
	Misses         uint64  `json:"misses"`
	HitRatePercent float64 `json:"hit_rate_percent"`
	Sleeps         uint64  `json:"sleeps"`
	LateWakeups    uint64  `json:"late_wakeups"`
}

// NoResult is that of a run that has not begun.
func NoResult() Result { return Result{ErrorsByCode: map[string]uint64{}} }

// resultOf sums up what the workers of a run have done.
func resultOf(p *Parameters, run *supervisor.Supervisor, workers []*worker) Result {
	total := newRecorder()
	r := NoResult()
	r.Interrupted = run.Interrupted()
	first, last := int64(math.MaxInt64), int64(0)
	for _, w := range workers {
		total.merge(w.recorder)
		r.Engine.add(w)
		if w.endedNs > 0 {
			first, last = min(first, w.startedNs), max(last, w.endedNs)
		}
	}
	r.Engine.HitRatePercent = ratio(float64(r.Engine.Hits)*100, float64(r.Engine.Hits+r.Engine.Misses))
	r.DurationNs = max(last-first, 0)
	r.Read = directionOf(&total.read, p, r.DurationNs)
	r.Write = directionOf(&total.write, p, r.DurationNs)
	both := newDistribution()
	both.merge(&total.read)
	both.merge(&total.write)
	all := directionOf(&both, p, r.DurationNs)
	r.Operations, r.IOPS, r.BytesPerSecond, r.LatencyNs = all.Operations, all.IOPS, all.BytesPerSecond, all.LatencyNs
	r.Bytes = r.Operations * uint64(p.BlockSize)
	r.Errors, r.Validated, r.Mismatches = total.errorCount, total.validated, total.mismatches
	for code, count := range total.errors {
		if count > 0 {
			r.ErrorsByCode[status.Code(code).String()] = count
		}
	}
	return r
}

func (r *Result) addRepetitions(reconnect bool, workers []*worker) {
	if !reconnect {
		return
	}
	r.Reconnections = &document.Reconnections{}
	for _, w := range workers {
		r.Reconnections.RepeatedRequests += w.recorder.repeated
	}
}

func (e *Engine) add(w *worker) {
	e.Hits += w.engine.Hits
	e.Misses += w.engine.Misses
	e.Sleeps += w.engine.Sleeps
	e.LateWakeups += w.engine.LateWakeups
}

func directionOf(d *distribution, p *Parameters, durationNs int64) Direction {
	seconds := time.Duration(durationNs).Seconds()
	return Direction{
		Operations:     d.count,
		IOPS:           ratio(float64(d.count), seconds),
		BytesPerSecond: uint64(ratio(float64(d.count)*float64(p.BlockSize), seconds)),
		LatencyNs:      d.latency(),
	}
}

// latency is nil for a distribution of nothing.
func (d *distribution) latency() *Latency {
	if d.count == 0 {
		return nil
	}
	return &Latency{
		Min: d.minNs, Mean: int64(d.sumNs / d.count), Max: d.maxNs,
		P50: d.percentile(50), P90: d.percentile(90), P99: d.percentile(99),
		P999: d.percentile(99.9), P9999: d.percentile(99.99),
	}
}

// percentile rounds up to the histogram's resolution, but never past the
// exact maximum.
func (d *distribution) percentile(p float64) int64 {
	return min(d.histogram.ValueAtPercentile(p), d.maxNs)
}

// ratio is a/b with three decimals, and 0 where it would not be a number.
func ratio(a, b float64) float64 {
	if b <= 0 {
		return 0
	}
	return math.Round(a/b*1000) / 1000
}
