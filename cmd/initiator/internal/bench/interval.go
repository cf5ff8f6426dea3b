// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math"
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/supervisor"
)

// Interval holds what completed in a part of a run. It is a difference, not a total so far.
type Interval struct {
	// StartNs and EndNs are times since the start of the run.
	StartNs int64 `json:"start_ns"`
	EndNs   int64 `json:"end_ns"`
	// WarmingUp means that the interval belongs to the warm-up, which the result leaves out.
	WarmingUp bool `json:"warming_up"`
	Direction
	Errors uint64 `json:"errors"`
}

// intervalRecorder collects the latencies of one worker for the current interval. The worker holds
// the lock while it records the results of a turn; nobody else wants it but a few times an
// interval.
type intervalRecorder struct {
	mu     sync.Mutex
	both   distribution
	warmup distribution // what both held when the warm-up ended
	spare  distribution // empty
	// measuredNs is when the worker began to measure; 0 in the warm-up.
	measuredNs int64
}

func newIntervalRecorder() *intervalRecorder {
	return &intervalRecorder{both: newDistribution(), warmup: newDistribution(),
		spare: newDistribution()}
}

// endWarmup keeps the latencies of the warm-up apart from what follows.
func (r *intervalRecorder) endWarmup(nowNs int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.both, r.warmup, r.measuredNs = r.warmup, r.both, nowNs
}

// take adds what was recorded since the last call, in the warm-up or after it, to sum.
func (r *intervalRecorder) take(sum *distribution, warmingUp bool) {
	r.mu.Lock()
	from := &r.both
	if warmingUp && r.measuredNs > 0 {
		from = &r.warmup
	}
	*from, r.spare = r.spare, *from
	r.mu.Unlock()
	sum.merge(&r.spare)
	r.spare.reset()
}

// measured returns when the worker began to measure, 0 if it has not.
func (r *intervalRecorder) measured() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.measuredNs
}

// shortestPart is the part of an interval that the last one has to last at least.
const shortestPart = 10

// intervals makes the intervals of a run. It belongs to the goroutine that observes the run.
//
// Nobody knows when a run will end. So each interval is held until a tenth of the next has passed:
// if the run ends before, the rest becomes part of it.
type intervals struct {
	parameters *Parameters
	run        *supervisor.Supervisor
	workers    []*worker
	observe    func(Interval)
	sinceNs    int64 // start of the current interval
	warmingUp  bool
	errors     uint64
	current    distribution // empty between calls
	held       Interval     // without its Direction; EndNs is 0 if there is none
	latencies  distribution // of held
}

func (c *Config) newIntervals(run *supervisor.Supervisor, workers []*worker) *intervals {
	return &intervals{parameters: &c.Parameters, run: run, workers: workers,
		observe: c.ObserveInterval, warmingUp: c.Parameters.Warmup > 0,
		current: newDistribution(), latencies: newDistribution()}
}

// shortestNs is the shortest duration of the last interval.
func (i *intervals) shortestNs() int64 { return int64(i.parameters.Interval) / shortestPart }

// advance is called several times in an interval. It ends the current one if it is time.
func (i *intervals) advance() {
	if i.observe == nil {
		return
	}
	i.endWarmup()
	now, shortest := i.run.NowNs(), i.shortestNs()
	if now-i.sinceNs >= shortest {
		i.report()
	}
	if now-i.sinceNs >= int64(i.parameters.Interval)-shortest/2 {
		i.hold(now)
	}
}

// end ends the last interval.
func (i *intervals) end() {
	if i.observe == nil {
		return
	}
	i.endWarmup()
	i.finish(i.run.NowNs())
}

// endWarmup ends the last interval of the warm-up when all workers measure.
func (i *intervals) endWarmup() {
	if !i.warmingUp {
		return
	}
	first := int64(math.MaxInt64)
	for _, w := range i.workers {
		first = min(first, w.interval.measured())
	}
	if first > 0 {
		i.finish(max(first, i.sinceNs))
		i.warmingUp = false
	}
}

// finish ends the last interval of a stage. One that is too short becomes part of the former one,
// and is left out if there is none and nothing happened in it.
func (i *intervals) finish(nowNs int64) {
	if nowNs-i.sinceNs >= i.shortestNs() {
		i.report()
	}
	i.hold(nowNs)
	if i.held.EndNs-i.held.StartNs >= i.shortestNs() || i.latencies.count > 0 ||
		i.held.Errors > 0 {
		i.report()
	}
	i.held = Interval{}
}

// hold ends the current interval, and adds it to the one that is held.
func (i *intervals) hold(nowNs int64) {
	var errors uint64
	for _, w := range i.workers {
		w.interval.take(&i.current, i.warmingUp)
		errors += w.recorder.publishedErrors.Load()
	}
	if i.held.EndNs == 0 {
		i.held = Interval{StartNs: i.sinceNs, WarmingUp: i.warmingUp}
	}
	i.held.EndNs = nowNs
	i.held.Errors += errors - i.errors
	i.latencies.merge(&i.current)
	i.current.reset()
	i.sinceNs, i.errors = nowNs, errors
}

// report reports the interval that is held, if there is one.
func (i *intervals) report() {
	if i.held.EndNs == 0 {
		return
	}
	i.held.Direction = directionOf(&i.latencies, i.parameters, i.held.EndNs-i.held.StartNs)
	i.observe(i.held)
	i.held = Interval{}
	i.latencies.reset()
}

// schedule says when the requests of an open loop are due, whatever becomes of the former ones.
type schedule struct {
	periodNs float64 // 0 for a closed loop: a request is due when there is room for it
	startNs  int64
	made     uint64
}

// begin begins the schedule of a stage.
func (s *schedule) begin(nowNs int64) { s.startNs, s.made = nowNs, 0 }

// next returns when the next request is due.
func (s *schedule) next() int64 { return s.startNs + int64(float64(s.made)*s.periodNs) }

// periodOf returns the time between two requests of a queue, in nanoseconds; 0 for a closed loop.
func (p *Parameters) periodOf() float64 {
	if p.Rate == 0 {
		return 0
	}
	return float64(time.Second) * float64(p.allQueues()) / float64(p.Rate)
}
