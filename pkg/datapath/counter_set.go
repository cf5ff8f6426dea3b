package datapath

import (
	"cmp"
	"slices"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// CounterSet is the counters of all queues with a common purpose, by their
// index in their session: those of a relay's channel, or of a target's
// volume. It is bounded by the queues of a session and the workers, however
// many sessions there are. Its methods may be called concurrently. The zero
// value has no queues.
type CounterSet struct {
	mu       sync.Mutex // guards counters, not what they count
	counters map[counterKey]*Counters
}

type counterKey struct {
	queue  int
	worker *Worker
}

// of returns the counters of a queue for the thread of worker.
func (s *CounterSet) of(queue int, worker *Worker) *Counters {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := counterKey{queue, worker}
	if c := s.counters[key]; c != nil {
		return c
	}
	if s.counters == nil {
		s.counters = make(map[counterKey]*Counters)
	}
	c := s.inherit(queue)
	s.counters[key] = c
	return c
}

// inherit returns the queue's counters of a worker that has stopped, so that
// there are never more than workers that run, or new ones.
func (s *CounterSet) inherit(queue int) *Counters {
	for key, c := range s.counters {
		if key.queue == queue && key.worker.hasStopped() {
			delete(s.counters, key)
			return c
		}
	}
	return &Counters{}
}

// countersOf is where a lane counts: its own counters, unless set shares them.
func countersOf(set *CounterSet, queue int, worker *Worker) *Counters {
	if set == nil {
		return &Counters{}
	}
	return set.of(queue, worker)
}

// Queues returns what has been counted, for each queue there has been, in the
// order of their indices.
func (s *CounterSet) Queues() []QueueCounts {
	s.mu.Lock()
	defer s.mu.Unlock()
	byQueue := make(map[int]*QueueCounts, len(s.counters))
	for key, counters := range s.counters {
		counts := byQueue[key.queue]
		if counts == nil {
			counts = &QueueCounts{Queue: key.queue}
			byQueue[key.queue] = counts
		}
		counts.add(counters)
	}
	queues := make([]QueueCounts, 0, len(byQueue))
	for _, counts := range byQueue {
		queues = append(queues, *counts)
	}
	slices.SortFunc(queues, func(a, b QueueCounts) int { return cmp.Compare(a.Queue, b.Queue) })
	return queues
}

// QueueCounts is what has been counted for the queues with one index. The
// counts are read one after another while IO goes on, so they may differ by
// the IOs of that moment.
type QueueCounts struct {
	// Queue is the index.
	Queue int
	// InFlight is how many IOs have been taken and not answered.
	InFlight int64

	io           [iomsg.OperationCount][status.CodeCount]uint64
	bytes        [iomsg.OperationCount]uint64
	backPressure [BackPressureCount]uint64
	latency      [iomsg.OperationCount]Latency
}

// Latency is the distribution of an operation's latency.
type Latency struct {
	// Buckets counts the IOs of each bucket, see LatencyBound.
	Buckets [LatencyBuckets]uint64
	// SumNs is all latencies together.
	SumNs uint64
}

// add adds what counters have published.
func (q *QueueCounts) add(counters *Counters) {
	q.InFlight += counters.inFlight.Load()
	for cause := range q.backPressure {
		q.backPressure[cause] += counters.backPressure[cause].Load()
	}
	for operation := range iomsg.OperationCount {
		var total uint64
		for code := range q.io[operation] {
			n := counters.io[operation][code].Load()
			q.io[operation][code] += n
			total += n
		}
		if total > 0 {
			q.addLatency(operation, counters)
		}
	}
}

func (q *QueueCounts) addLatency(operation iomsg.Operation, counters *Counters) {
	q.bytes[operation] += counters.bytes[operation].Load()
	latency := &q.latency[operation]
	latency.SumNs += counters.latencySumNs[operation].Load()
	for i := range latency.Buckets {
		latency.Buckets[i] += counters.latency[operation][i].Load()
	}
}

// IO is how many IOs of an operation ended with code.
func (q *QueueCounts) IO(operation iomsg.Operation, code status.Code) uint64 {
	return q.io[operation][code]
}

// Total is how many IOs of an operation have ended.
func (q *QueueCounts) Total(operation iomsg.Operation) uint64 {
	var total uint64
	for _, n := range q.io[operation] {
		total += n
	}
	return total
}

// Bytes is how many bytes successful IOs of an operation have moved.
func (q *QueueCounts) Bytes(operation iomsg.Operation) uint64 { return q.bytes[operation] }

// BackPressure is how often something had to wait because of cause.
func (q *QueueCounts) BackPressure(cause BackPressure) uint64 { return q.backPressure[cause] }

// Latency is the distribution of an operation's latency.
func (q *QueueCounts) Latency(operation iomsg.Operation) *Latency { return &q.latency[operation] }
