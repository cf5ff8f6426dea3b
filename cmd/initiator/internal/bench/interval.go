package bench

import (
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/cmd/initiator/internal/supervisor"
)

// Interval holds what completed in a part of a run. It is a difference, not a total so far.
type Interval struct {
	// StartNs and EndNs are times since the start of the run.
	StartNs int64 `json:"start_ns"`
	EndNs   int64 `json:"end_ns"`
	// WarmingUp means that the interval began in the warm-up, which the result leaves out.
	WarmingUp bool `json:"warming_up"`
	Direction
	Errors uint64 `json:"errors"`
}

// intervalRecorder collects the latencies of one worker for the current interval. The worker holds
// the lock while it records the results of a turn; nobody else wants it but once an interval.
type intervalRecorder struct {
	mu    sync.Mutex
	both  distribution
	spare distribution // empty
}

func newIntervalRecorder() *intervalRecorder {
	return &intervalRecorder{both: newDistribution(), spare: newDistribution()}
}

// take adds what was recorded since the last call to sum.
func (r *intervalRecorder) take(sum *distribution) {
	r.mu.Lock()
	r.both, r.spare = r.spare, r.both
	r.mu.Unlock()
	sum.merge(&r.spare)
	r.spare.reset()
}

// intervals makes the intervals of a run. It belongs to the goroutine that observes the run.
type intervals struct {
	parameters *Parameters
	run        *supervisor.Supervisor
	workers    []*worker
	observe    func(Interval)
	sinceNs    int64
	warmingUp  bool
	errors     uint64
	sum        distribution
}

func (c *Config) newIntervals(run *supervisor.Supervisor, workers []*worker) *intervals {
	return &intervals{parameters: &c.Parameters, run: run, workers: workers,
		observe: c.ObserveInterval, warmingUp: c.Parameters.Warmup > 0, sum: newDistribution()}
}

// end ends the current interval and begins the next.
func (i *intervals) end() {
	if i.observe == nil {
		return
	}
	now := i.run.NowNs()
	i.sum.reset()
	var errors uint64
	for _, w := range i.workers {
		w.interval.take(&i.sum)
		errors += w.recorder.publishedErrors.Load()
	}
	i.observe(Interval{StartNs: i.sinceNs, EndNs: now, WarmingUp: i.warmingUp,
		Direction: directionOf(&i.sum, i.parameters, now-i.sinceNs), Errors: errors - i.errors})
	i.sinceNs, i.errors, i.warmingUp = now, errors, i.run.Stage() == warmingUp
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
