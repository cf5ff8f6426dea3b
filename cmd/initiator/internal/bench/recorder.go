// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/document"
	"github.com/zc-relay/zc-relay/cmd/initiator/internal/supervisor"
	"github.com/zc-relay/zc-relay/pkg/client"
)

// The histogram keeps three significant digits up to one hour. Longer latencies count as one hour
// in percentiles.
const (
	significantDigits = 3
	longestLatencyNs  = int64(time.Hour)
)

// distribution holds the latencies of one kind of request, in nanoseconds. Its minimum, maximum and
// mean are exact.
type distribution struct {
	histogram *hdrhistogram.Histogram
	count     uint64
	minNs     int64
	maxNs     int64
	sumNs     uint64
}

func newDistribution() distribution {
	return distribution{histogram: hdrhistogram.New(1, longestLatencyNs, significantDigits)}
}

func (d *distribution) record(latencyNs int64) {
	if d.count == 0 || latencyNs < d.minNs {
		d.minNs = latencyNs
	}
	d.maxNs = max(d.maxNs, latencyNs)
	d.count++
	d.sumNs += uint64(latencyNs)
	// It cannot fail within the histogram's bounds.
	_ = d.histogram.RecordValue(min(latencyNs, longestLatencyNs))
}

func (d *distribution) merge(other *distribution) {
	if other.count == 0 {
		return
	}
	if d.count == 0 || other.minNs < d.minNs {
		d.minNs = other.minNs
	}
	d.maxNs = max(d.maxNs, other.maxNs)
	d.count += other.count
	d.sumNs += other.sumNs
	d.histogram.Merge(other.histogram)
}

func (d *distribution) reset() {
	d.histogram.Reset()
	*d = distribution{histogram: d.histogram}
}

// recorder holds the counts of one worker. Only its thread writes it. Others may read the published
// values at any time, and everything after the thread has ended.
type recorder struct {
	read, write distribution
	failures    document.Failures // of the whole run, including the warm-up
	validated   uint64            // requests whose data was compared
	mismatches  uint64
	repeated    uint64 // requests submitted again after the loss of a session

	publishedOperations atomic.Uint64
	publishedErrors     atomic.Uint64
}

func newRecorder() *recorder {
	return &recorder{read: newDistribution(), write: newDistribution()}
}

func (r *recorder) record(t client.RequestType, latencyNs int64) {
	if t == client.Read {
		r.read.record(latencyNs)
		return
	}
	r.write.record(latencyNs)
}

// publish makes the worker's progress visible to others.
func (r *recorder) publish() {
	r.publishedOperations.Store(r.read.count + r.write.count)
	r.publishedErrors.Store(r.failures.Count + r.mismatches)
}

// resetOperations discards the measurements of the warm-up. It keeps the errors, which must not go
// unseen.
func (r *recorder) resetOperations() {
	r.read.reset()
	r.write.reset()
	r.validated = 0
	r.publish()
}

func (r *recorder) merge(other *recorder) {
	r.read.merge(&other.read)
	r.write.merge(&other.write)
	r.failures.Merge(&other.failures)
	r.validated += other.validated
	r.mismatches += other.mismatches
}

// resultOf sums up the counts of all workers.
func resultOf(p *Parameters, run *supervisor.Supervisor, workers []*worker) Result {
	total := newRecorder()
	r := NoResult()
	r.Interrupted = run.Interrupted()
	for _, w := range workers {
		total.merge(w.recorder)
		r.Engine.add(w)
	}
	r.Engine.HitRatePercent = ratio(float64(r.Engine.Hits)*100,
		float64(r.Engine.Hits+r.Engine.Misses))
	first, last := measuredBetween(workers)
	r.DurationNs = last - first
	r.Read = directionOf(&total.read, p, r.DurationNs)
	r.Write = directionOf(&total.write, p, r.DurationNs)
	both := newDistribution()
	both.merge(&total.read)
	both.merge(&total.write)
	all := directionOf(&both, p, r.DurationNs)
	r.Operations, r.IOPS, r.BytesPerSecond, r.LatencyNs = all.Operations, all.IOPS,
		all.BytesPerSecond, all.LatencyNs
	r.Bytes = r.Operations * uint64(p.BlockSize)
	r.Errors, r.Validated, r.Mismatches = total.failures.Count, total.validated, total.mismatches
	r.ErrorsByCode, r.ErrorsByCause = total.failures.ByCode(), total.failures.ByCause()
	return r
}

// measuredBetween returns when the first worker began to measure and when the last one ended, by
// Supervisor.NowNs; twice the current time if none did.
func measuredBetween(workers []*worker) (first, last int64) {
	first = math.MaxInt64
	for _, w := range workers {
		if w.endedNs > 0 {
			first, last = min(first, w.startedNs), max(last, w.endedNs)
		}
	}
	if last == 0 {
		now := workers[0].run.NowNs()
		return now, now
	}
	return first, last
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

// latency returns the latencies, nil for an empty distribution.
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

// percentile returns a percentile, rounded up to the histogram's resolution but at most the exact
// maximum.
func (d *distribution) percentile(p float64) int64 {
	return min(d.histogram.ValueAtPercentile(p), d.maxNs)
}

// ratio returns a/b with three decimals, or 0 if b is not positive.
func ratio(a, b float64) float64 {
	if b <= 0 {
		return 0
	}
	return math.Round(a/b*1000) / 1000
}
