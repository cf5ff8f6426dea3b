// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/fault"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// queue is a completion queue. Its connections have slots, which replace the contexts that their
// owners chose, because contexts need not be unique. Everything belongs to the thread that polls,
// except slots.
type queue struct {
	*fault.Waiter
	inner  rdma.CompletionQueue
	points *points

	held     []heldCompletion // not yet delivered, in order
	scratch  []rdma.Completion
	stalling []*connection // with requests that have not been posted to the inner connection

	slots atomic.Pointer[[]*connection] // attached connections; nil where a slot is free
	mu    sync.Mutex                    // guards changes of slots
}

// heldCompletion is a completion with the context of the connection's owner.
type heldCompletion struct {
	completion rdma.Completion
	connection *connection
	isStalled  bool
	stall      fault.Stall
}

// scratchSize is how many completions are polled at a time while some are held back.
const scratchSize = 32

func newQueue(inner rdma.CompletionQueue, p *points, capacity int) (*queue, error) {
	q := &queue{inner: inner, points: p, scratch: make([]rdma.Completion, scratchSize)}
	q.slots.Store(new([]*connection))
	var err error
	if q.Waiter, err = p.injector.NewWaiter(inner, p.postSend, p.poll); err != nil {
		return nil, errors.Join(err, inner.Close())
	}
	if q.CanStall() {
		q.held = make([]heldCompletion, 0, capacity)
	}
	return q, nil
}

// attach gives a connection a slot and returns its number.
func (q *queue) attach(c *connection) uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	slots := slices.Clone(*q.slots.Load())
	i := slices.Index(slots, nil)
	if i < 0 {
		i = len(slots)
		slots = append(slots, nil)
	}
	slots[i] = c
	q.slots.Store(&slots)
	return uint64(i)
}

func (q *queue) detach(slot uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	slots := slices.Clone(*q.slots.Load())
	slots[slot] = nil
	q.slots.Store(&slots)
}

// Poll posts what is due, drives the connections, and returns completions that are due.
func (q *queue) Poll(completions []rdma.Completion) int {
	if len(q.stalling) > 0 {
		q.postDue()
	}
	arrived := completions
	if len(q.held) > 0 && len(completions) > 0 {
		arrived = q.scratch
	}
	done := 0
	for i := range arrived[:q.inner.Poll(arrived)] {
		entry := q.receive(arrived[i])
		if len(q.held) > 0 || entry.isStalled {
			q.held = append(q.held, entry)
			continue
		}
		completions[done] = entry.deliver()
		done++
	}
	if len(q.held) > 0 {
		done += q.deliver(completions[done:])
	}
	return done
}

// receive takes a completion from the inner queue. If it is a connection's last, it completes what
// the connection holds back.
func (q *queue) receive(completion rdma.Completion) heldCompletion {
	slot := completion.Context
	c := (*q.slots.Load())[slot]
	completion.Context = c.context
	switch completion.Opcode {
	case rdma.OpReceive:
		c.receive(&completion)
	case rdma.OpDisconnected:
		for _, batch := range c.held {
			for _, r := range batch.requests {
				q.held = append(q.held, c.flushed(r.ID, r.Opcode))
			}
		}
		c.held, c.ended = nil, true
		q.detach(slot)
	}
	entry := heldCompletion{completion: completion, connection: c}
	if q.points.poll != nil {
		hit := q.points.poll.Next(uint64(completion.Length))
		entry.stall, entry.isStalled = hit.Stall(), hit.Stalls()
	}
	return entry
}

// deliver moves completions that are due to completions and returns their number.
func (q *queue) deliver(completions []rdma.Completion) int {
	n := 0
	for n < len(completions) && n < len(q.held) && q.held[n].stall.IsOver() {
		completions[n] = q.held[n].deliver()
		n++
	}
	q.held = slices.Delete(q.held, 0, n)
	return n
}

func (h *heldCompletion) deliver() rdma.Completion {
	if h.completion.Opcode == rdma.OpDisconnected {
		h.connection.detached = true
	}
	return h.completion
}

// postDue posts requests that are due to the inner connections.
func (q *queue) postDue() {
	q.stalling = slices.DeleteFunc(q.stalling, func(c *connection) bool {
		c.postDue()
		return len(c.held) == 0
	})
}

// Close closes the queue.
func (q *queue) Close() error {
	if len(q.held) > 0 {
		return status.Errorf(status.InUse,
			"close completion queue: %d completions have not been polled", len(q.held))
	}
	if err := q.inner.Close(); err != nil {
		return err
	}
	return q.Waiter.Close()
}

// Arm prepares for sleep until there is work, or something that was held back is due.
func (q *queue) Arm() bool {
	if q.isReady() {
		q.Disarm() // it may have been armed before
		return false
	}
	return q.Waiter.Arm()
}

// isReady reports whether something that was held back is due. If not, it wakes the thread in time.
func (q *queue) isReady() bool {
	var earliest fault.Stall
	q.forStalls(func(s *fault.Stall) bool {
		if s.IsBefore(&earliest) {
			earliest = *s
		}
		return false
	})
	q.WakeAt(&earliest)
	return q.forStalls((*fault.Stall).IsOver)
}

// forStalls calls f for each stall that something waits for, until f returns true.
func (q *queue) forStalls(f func(*fault.Stall) bool) bool {
	if len(q.held) > 0 && f(&q.held[0].stall) {
		return true
	}
	return slices.ContainsFunc(q.stalling, func(c *connection) bool {
		return !c.lost && len(c.held) > 0 && f(&c.held[0].stall)
	})
}
