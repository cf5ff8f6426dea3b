// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// BackPressure is the reason why a request or a response had to wait.
type BackPressure uint8

// NoClientReceive occurs on the relay, the other causes on the target.
const (
	// NoClientReceive: the client had posted no receive for a response. Until it does, the relay
	// accepts no more requests from it.
	NoClientReceive BackPressure = iota
	// NoResponseRoom: a request arrived while the responses to earlier ones were still being sent.
	NoResponseRoom
	// NoReadCredit: a write needed an RDMA Read beyond the connection's read depth.
	NoReadCredit
	// NoLease: a change arrived while its relay had not answered for too long.
	NoLease
	BackPressureCount
)

// String returns the cause's label in metrics.
func (b BackPressure) String() string {
	switch b {
	case NoClientReceive:
		return "client_receive"
	case NoResponseRoom:
		return "answer_room"
	case NoReadCredit:
		return "rdma_read"
	case NoLease:
		return "lease"
	}
	return "invalid"
}

// counters counts the IOs of one lane. Its worker counts in plain memory where it
// can and publishes once per batch, because an atomic store costs more than everything else here.
// Any goroutine may read the published counts, which never decrease, except inFlight.
type counters struct {
	pending    [iomsg.OperationCount]tally
	operations uint32 // a bit for each operation in pending
	active     int64  // requests that have begun and not completed

	io           [iomsg.OperationCount][status.CodeCount]atomic.Uint64
	bytes        [iomsg.OperationCount]atomic.Uint64
	latencySumNs [iomsg.OperationCount]atomic.Uint64
	latency      [iomsg.OperationCount][LatencyBuckets]atomic.Uint64
	backPressure [BackPressureCount]atomic.Uint64
	throttledNs  [ThrottleLevelCount]atomic.Uint64
	inFlight     atomic.Int64
}

// tally adds up the IOs of one operation in a batch.
type tally struct{ successes, bytes, latencyNs uint64 }

// increase adds to a count that only the calling thread writes, which makes an atomic addition
// unnecessary.
func increase(count *atomic.Uint64, n uint64) {
	if n > 0 {
		count.Store(count.Load() + n)
	}
}

// begin counts a request that is now in flight.
func (c *counters) begin() { c.active++ }

// complete counts the completion of a request in flight. size is how many bytes it moved if it
// succeeded.
func (c *counters) complete(
	operation iomsg.Operation, code status.Code, size uint32, latencyNs int64,
) {
	c.active--
	ns := uint64(max(latencyNs, 0))
	increase(&c.latency[operation][latencyBucket(ns)], 1)
	c.pending[operation].latencyNs += ns
	c.count(operation, code, size)
}

// reject counts a request that completes without having begun, and so has no latency.
func (c *counters) reject(operation iomsg.Operation, code status.Code) {
	c.count(operation, code, 0)
}

// discard removes n requests in flight that will never complete.
func (c *counters) discard(n int) { c.active -= int64(n) }

func (c *counters) count(operation iomsg.Operation, code status.Code, size uint32) {
	if !code.Known() {
		code = status.Unknown
	}
	pending := &c.pending[operation]
	c.operations |= 1 << operation
	if code != status.Success {
		increase(&c.io[operation][code], 1)
		return
	}
	pending.successes++
	if operation.MovesData() {
		pending.bytes += uint64(size)
	}
}

// backpressure counts one wait.
func (c *counters) backpressure(cause BackPressure) { increase(&c.backPressure[cause], 1) }

// throttled counts how long rate limits have made requests wait.
func (c *counters) throttled(level throttleLevel, ns int64) {
	increase(&c.throttledNs[level], uint64(max(ns, 0)))
}

// publish makes everything counted so far visible to readers.
func (c *counters) publish() {
	for ; c.operations != 0; c.operations &= c.operations - 1 {
		operation := bits.TrailingZeros32(c.operations)
		pending := &c.pending[operation]
		increase(&c.io[operation][status.Success], pending.successes)
		increase(&c.bytes[operation], pending.bytes)
		increase(&c.latencySumNs[operation], pending.latencyNs)
		*pending = tally{}
	}
	if c.active != c.inFlight.Load() {
		c.inFlight.Store(c.active)
	}
}

// CounterSet adds up the counters of lanes: those of a relay's channel, of a target's volume, of a
// client, or of a session. Its size is bounded by the open lanes and the queues of a session. Its
// methods may be called concurrently. The zero value has no queues.
type CounterSet struct {
	mu   sync.Mutex        // guards what follows, not what the counters count
	open map[*counters]int // of lanes, with the index of their queue
	// closed holds what lanes had counted when they were closed, by the index of their queue.
	closed map[int]*QueueCounts
}

// include adds the counters of a lane that opens.
func (s *CounterSet) include(c *counters, queue int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open, s.closed = make(map[*counters]int), make(map[int]*QueueCounts)
	}
	s.open[c] = queue
}

// retire keeps what a lane has counted that counts no more, instead of its counters. A reader never
// sees a count decrease.
func (s *CounterSet) retire(c *counters) {
	s.mu.Lock()
	defer s.mu.Unlock()
	queue, isOpen := s.open[c]
	if !isOpen {
		return
	}
	delete(s.open, c)
	if s.closed[queue] == nil {
		s.closed[queue] = &QueueCounts{Queue: queue}
	}
	s.closed[queue].add(c)
	s.closed[queue].InFlight = 0
}

// isIdle reports whether no lane counts.
func (s *CounterSet) isIdle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open) == 0
}

// Queues returns the counts of every queue so far, sorted by index.
func (s *CounterSet) Queues() []QueueCounts {
	s.mu.Lock()
	defer s.mu.Unlock()
	byQueue := make(map[int]*QueueCounts, len(s.closed))
	for queue, counts := range s.closed {
		byQueue[queue] = new(*counts)
	}
	for counters, queue := range s.open {
		if byQueue[queue] == nil {
			byQueue[queue] = &QueueCounts{Queue: queue}
		}
		byQueue[queue].add(counters)
	}
	queues := make([]QueueCounts, 0, len(byQueue))
	for _, counts := range byQueue {
		queues = append(queues, *counts)
	}
	slices.SortFunc(queues, func(a, b QueueCounts) int { return cmp.Compare(a.Queue, b.Queue) })
	return queues
}

// Total returns the counts of all queues together.
func (s *CounterSet) Total() *QueueCounts {
	return Total(s.Queues())
}

// Total adds up the counts of queues. The sum has the index 0.
func Total(queues []QueueCounts) *QueueCounts {
	total := new(QueueCounts)
	for i := range queues {
		total.merge(&queues[i])
	}
	return total
}

// QueueCounts holds the counts of all queues with one index. They are read one after another while
// IO goes on, so they may differ by a few IOs.
type QueueCounts struct {
	// Queue is the index.
	Queue int
	// InFlight is the number of IOs that have begun and not completed.
	InFlight int64

	io           [iomsg.OperationCount][status.CodeCount]uint64
	bytes        [iomsg.OperationCount]uint64
	backPressure [BackPressureCount]uint64
	throttledNs  [ThrottleLevelCount]uint64
	latency      [iomsg.OperationCount]Latency
}

// Latency is the distribution of an operation's latency.
type Latency struct {
	// Buckets counts the IOs in each bucket: see LatencyBound.
	Buckets [LatencyBuckets]uint64
	// SumNs is the sum of all latencies.
	SumNs uint64
}

// add adds the published counts of a lane.
func (q *QueueCounts) add(c *counters) {
	q.InFlight += c.inFlight.Load()
	for cause := range q.backPressure {
		q.backPressure[cause] += c.backPressure[cause].Load()
	}
	for level := range q.throttledNs {
		q.throttledNs[level] += c.throttledNs[level].Load()
	}
	for operation := range iomsg.OperationCount {
		var total uint64
		for code := range q.io[operation] {
			n := c.io[operation][code].Load()
			q.io[operation][code] += n
			total += n
		}
		if total == 0 {
			continue
		}
		q.bytes[operation] += c.bytes[operation].Load()
		latency := &q.latency[operation]
		latency.SumNs += c.latencySumNs[operation].Load()
		for i := range latency.Buckets {
			latency.Buckets[i] += c.latency[operation][i].Load()
		}
	}
}

// merge adds the counts of other queues.
func (q *QueueCounts) merge(other *QueueCounts) {
	q.InFlight += other.InFlight
	for cause, n := range other.backPressure {
		q.backPressure[cause] += n
	}
	for level, ns := range other.throttledNs {
		q.throttledNs[level] += ns
	}
	for operation := range iomsg.OperationCount {
		for code, n := range other.io[operation] {
			q.io[operation][code] += n
		}
		q.bytes[operation] += other.bytes[operation]
		latency := &q.latency[operation]
		latency.SumNs += other.latency[operation].SumNs
		for i, n := range other.latency[operation].Buckets {
			latency.Buckets[i] += n
		}
	}
}

// IO returns the number of IOs of an operation that completed with code.
func (q *QueueCounts) IO(operation iomsg.Operation, code status.Code) uint64 {
	return q.io[operation][code]
}

// Total returns the number of IOs of an operation that have completed.
func (q *QueueCounts) Total(operation iomsg.Operation) uint64 {
	var total uint64
	for _, n := range q.io[operation] {
		total += n
	}
	return total
}

// Failed returns the number of IOs of an operation that have failed.
func (q *QueueCounts) Failed(operation iomsg.Operation) uint64 {
	return q.Total(operation) - q.IO(operation, status.Success)
}

// Bytes returns how many bytes the successful IOs of an operation have moved.
func (q *QueueCounts) Bytes(operation iomsg.Operation) uint64 { return q.bytes[operation] }

// BackPressure returns how often something had to wait because of cause.
func (q *QueueCounts) BackPressure(cause BackPressure) uint64 { return q.backPressure[cause] }

// Throttled returns how long requests have waited for the limits of the given level. Of the time
// during which a queue might not be read, only waits that ended with a request count.
func (q *QueueCounts) Throttled(level throttleLevel) time.Duration {
	return time.Duration(q.throttledNs[level])
}

// Latency returns the distribution of an operation's latency.
func (q *QueueCounts) Latency(operation iomsg.Operation) *Latency { return &q.latency[operation] }
