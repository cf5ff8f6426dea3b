// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"math"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// QueueStatus sums up all queues with one index, over all sessions so far, as the status of a
// daemon shows it.
type QueueStatus struct {
	Index        int               `json:"index"`
	InFlight     int64             `json:"in_flight"`
	BackPressure map[string]uint64 `json:"back_pressure"`
	// Throttled is how long rate limits have made IOs wait, by whose limits: "channel" or
	// "session".
	Throttled  map[string]uint64    `json:"throttled_ns,omitempty"`
	Operations map[string]Operation `json:"operations"`
}

// Operation counts the IOs of one kind.
type Operation struct {
	Succeeded uint64            `json:"succeeded"`
	Failed    map[string]uint64 `json:"failed"` // by symbolic code
	Bytes     uint64            `json:"bytes"`
	Latency   LatencyStatus     `json:"latency"`
}

// LatencyStatus is the distribution of all latencies since the start. Percentiles are upper bounds
// of histogram buckets that are 9 % wide; nil if there are no latencies.
type LatencyStatus struct {
	Sum  uint64  `json:"sum_ns"` // of all IOs, including failed ones
	Mean *uint64 `json:"mean_ns"`
	P50  *uint64 `json:"p50_ns"`
	P99  *uint64 `json:"p99_ns"`
	P999 *uint64 `json:"p99_9_ns"`
}

// WorkerStatus is the state of a worker at one moment.
type WorkerStatus struct {
	Index       int    `json:"index"`
	CPU         *int   `json:"cpu"` // nil if the thread is not pinned
	Queues      int    `json:"queues"`
	Hits        uint64 `json:"poll_hits"`
	Misses      uint64 `json:"poll_misses"`
	Sleeps      uint64 `json:"sleeps"`
	LateWakeups uint64 `json:"late_wakeups"`
}

// WorkerStatuses returns the state of workers.
func WorkerStatuses(workers []*Worker) []WorkerStatus {
	all := make([]WorkerStatus, len(workers))
	for i, w := range workers {
		stats := w.Stats()
		all[i] = WorkerStatus{
			Index: i, Queues: w.Lanes(), Hits: stats.Hits, Misses: stats.Misses,
			Sleeps: stats.Sleeps, LateWakeups: stats.LateWakeups,
		}
		if cpu := w.CPU(); cpu != NoCPU {
			all[i].CPU = &cpu
		}
	}
	return all
}

// Status returns what Queues does, as the status of a daemon shows it.
func (s *CounterSet) Status() []QueueStatus {
	counts := s.Queues()
	all := make([]QueueStatus, len(counts))
	for i := range counts {
		all[i] = counts[i].status()
	}
	return all
}

func (q *QueueCounts) status() QueueStatus {
	s := QueueStatus{
		Index: q.Queue, InFlight: q.InFlight,
		BackPressure: make(map[string]uint64), Operations: q.Operations(),
	}
	for cause := range BackPressureCount {
		if n := q.BackPressure(cause); n > 0 {
			s.BackPressure[cause.String()] = n
		}
	}
	for level := range ThrottleLevelCount {
		if d := q.Throttled(level); d > 0 {
			if s.Throttled == nil {
				s.Throttled = make(map[string]uint64)
			}
			s.Throttled[level.String()] = uint64(d)
		}
	}
	return s
}

// Operations returns the counts of each operation that was requested, by its name.
func (q *QueueCounts) Operations() map[string]Operation {
	all := make(map[string]Operation)
	for operation := range iomsg.OperationCount {
		if q.Total(operation) > 0 {
			all[operation.String()] = q.operation(operation)
		}
	}
	return all
}

func (q *QueueCounts) operation(operation iomsg.Operation) Operation {
	o := Operation{
		Succeeded: q.IO(operation, status.Success), Bytes: q.Bytes(operation),
		Failed: make(map[string]uint64), Latency: q.Latency(operation).status(),
	}
	for code := status.Success + 1; int(code) < status.CodeCount; code++ {
		if n := q.IO(operation, code); n > 0 {
			o.Failed[code.String()] = n
		}
	}
	return o
}

func (l *Latency) status() LatencyStatus {
	var count uint64
	for _, n := range l.Buckets {
		count += n
	}
	if count == 0 {
		return LatencyStatus{}
	}
	return LatencyStatus{
		Sum: l.SumNs, Mean: new(l.SumNs / count), P50: l.percentileNs(count, 0.5),
		P99: l.percentileNs(count, 0.99), P999: l.percentileNs(count, 0.999),
	}
}

// percentileNs returns the upper bound of the bucket that holds the percentile. For the last
// bucket, which has none, it returns the lower bound.
func (l *Latency) percentileNs(count uint64, part float64) *uint64 {
	rank := uint64(math.Ceil(part * float64(count)))
	var below uint64
	bucket := 0
	for ; bucket < LatencyBuckets-2; bucket++ {
		if below += l.Buckets[bucket]; below >= rank {
			break
		}
	}
	return new(latencyBoundsNs[bucket])
}
