// SPDX-License-Identifier: Apache-2.0

package client

import (
	"iter"
	"sync/atomic"
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Stats counts the requests of a queue, or of all queues of a volume, since Open. A request that a
// blocking method repeats in another session counts again.
type Stats struct {
	Submitted uint64
	Completed uint64 // of Submitted; all the others are outstanding
	Failed    uint64 // of Completed
	// BytesRead and BytesWritten are those of reads and writes that have succeeded.
	BytesRead    uint64
	BytesWritten uint64
}

// complete counts a request that has completed.
func (s *Stats) complete(kind RequestType, code status.Code, length uint64) {
	s.Completed++
	switch {
	case code != status.Success:
		s.Failed++
	case kind == Read:
		s.BytesRead += length
	case kind == Write:
		s.BytesWritten += length
	}
}

// publishedStats are the Stats of a queue for other goroutines. The queue's thread counts without
// it, and publishes once for many requests.
type publishedStats struct {
	submitted, completed, failed, bytesRead, bytesWritten atomic.Uint64
}

func (q *Queue) publishStats() {
	p := &q.published
	p.completed.Store(q.counted.Completed)
	p.submitted.Store(q.counted.Submitted)
	p.failed.Store(q.counted.Failed)
	p.bytesRead.Store(q.counted.BytesRead)
	p.bytesWritten.Store(q.counted.BytesWritten)
}

// Stats returns the queue's counters as of its last Ring, or the last Poll with a result. Any
// goroutine may call it.
func (q *Queue) Stats() Stats {
	p := &q.published
	// First the requests that have completed, so that there are never fewer submitted.
	completed := p.completed.Load()
	return Stats{Submitted: max(p.submitted.Load(), completed), Completed: completed,
		Failed:    min(p.failed.Load(), completed),
		BytesRead: p.bytesRead.Load(), BytesWritten: p.bytesWritten.Load()}
}

// Stats returns the sum of the counters of all queues, including that of the blocking methods: see
// Queue.Stats. Reconnections and Quarantined have what concerns sessions.
func (v *Volume) Stats() Stats {
	var sum Stats
	for _, q := range v.queues {
		s := q.Stats()
		sum.Submitted += s.Submitted
		sum.Completed += s.Completed
		sum.Failed += s.Failed
		sum.BytesRead += s.BytesRead
		sum.BytesWritten += s.BytesWritten
	}
	return sum
}

// Pending is a request that is outstanding.
type Pending struct {
	Tag  uint64
	Type RequestType
	Age  time.Duration // since Submit, in steps of 0.1 s
}

// Pending returns an iterator over the requests whose results have not been polled, in no order.
// Only the queue's thread may use it, and the loop must not use the queue.
func (q *Queue) Pending() iter.Seq[Pending] {
	return func(yield func(Pending) bool) {
		isFree := make([]bool, len(q.slots))
		for _, index := range q.free {
			isFree[index] = true
		}
		now := q.clock.Load()
		for i := range q.slots {
			s := &q.slots[i]
			if isFree[i] || s.isSegment && s.segment.head != uint32(i) {
				continue
			}
			if !yield(Pending{Tag: s.tag, Type: s.kind, Age: time.Duration(now - s.since)}) {
				return
			}
		}
	}
}
