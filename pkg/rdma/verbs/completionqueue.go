//go:build verbs

package verbs

import (
	"sync"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs/internal/ibv"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// minCompletions is the least capacity of a completion queue. Not every
// driver can make one larger later.
const minCompletions = 1 << 14

// completionQueue implements rdma.CompletionQueue. It belongs to the thread
// that polls it, but for alarm, slots, and what mu guards.
type completionQueue struct {
	device      *device
	cq          *ibv.CompletionQueue
	poller      *poller
	completions completionRing
	waiting     []*connection // with requests that the device does not have yet
	spare       []*connection // the list that waiting takes turns with
	ending      []*connection // to be finished when the device's queue was seen empty
	ended       []*connection // OpDisconnected not yet collected
	// work holds what was polled; taken of it are first to last.
	work        [ibv.MaxPoll]ibv.Completion
	first, last int
	// requested: the device is to notify of the next completion.
	requested bool

	// alarm says that another thread has left a note at a connection.
	alarm    atomic.Bool
	slots    atomic.Pointer[[]*connection]
	attached atomic.Int32 // connections whose OpDisconnected is not collected
	// owed tells that gone is not 0.
	owed    atomic.Bool
	leaving sync.WaitGroup // connections that have been abandoned

	mu         sync.Mutex // guards what follows, and changes of slots
	generation uint32
	reserved   int // requests that attached connections can have outstanding
	gone       int // those of reserved whose connections are gone
	closed     bool
}

func newCompletionQueue(d *device, capacity int) (*completionQueue, error) {
	cq, err := d.context.NewCompletionQueue(min(max(capacity, minCompletions), d.limits.Completions))
	if err != nil {
		return nil, err
	}
	q := &completionQueue{device: d, cq: cq, completions: newCompletionRing(4 * ibv.MaxPoll)}
	q.slots.Store(&[]*connection{})
	if q.poller, err = newPoller(cq.Descriptor()); err != nil {
		_ = cq.Close()
		return nil, err
	}
	return q, nil
}

// Close implements rdma.CompletionQueue.
func (q *completionQueue) Close() error {
	q.leaving.Wait()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil
	}
	if n := q.attached.Load(); n > 0 {
		return status.Errorf(status.InUse, "close completion queue: %d connections are attached", n)
	}
	q.closed = true
	q.poller.close()
	err := q.cq.Close()
	q.device.release()
	return err
}

// attach gives a connection a slot and reserves room for its completions. Any
// goroutine may call it.
func (q *completionQueue) attach(c *connection) error {
	requests := c.requests()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return status.Errorf(status.BadState, "completion queue is closed")
	}
	if q.reserved+requests > q.cq.Capacity() {
		return status.Errorf(status.NoMemory,
			"completion queue of %d entries has no room for %d requests more than the %d of its other connections: use more workers, fewer queues or less depth",
			q.cq.Capacity(), requests, q.reserved)
	}
	slots := *q.slots.Load()
	slot := 0
	for slot < len(slots) && slots[slot] != nil {
		slot++
	}
	if slot == maxSlots {
		return status.Errorf(status.Full, "completion queue has its maximum of %d connections", maxSlots)
	}
	q.generation++
	c.token = newToken(slot, q.generation)
	q.setSlot(slot, c)
	q.reserved += requests
	q.attached.Add(1)
	return nil
}

// setSlot publishes the slots with one changed.
func (q *completionQueue) setSlot(slot int, c *connection) {
	old := *q.slots.Load()
	slots := make([]*connection, max(len(old), slot+1))
	copy(slots, old)
	slots[slot] = c
	q.slots.Store(&slots)
}

// detach forgets a connection without queue pair. What it may have left in
// the device's queue keeps its room until that was seen empty.
func (q *completionQueue) detach(c *connection) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.setSlot(slotOf(c.token), nil)
	q.gone += c.requests()
	q.owed.Store(true)
	q.attached.Add(-1)
}

// settle gives back the room of connections that are gone.
func (q *completionQueue) settle() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.owed.Store(false)
	q.reserved -= q.gone
	q.gone = 0
}

// requests is how many completions the connection can have.
func (c *connection) requests() int { return int(c.sends.limit + c.receives.limit) }

// find returns the connection with the token, or nil if it is gone.
func (q *completionQueue) find(token uint32) *connection {
	slots := *q.slots.Load()
	slot := slotOf(token)
	if slot >= len(slots) || slots[slot] == nil || slots[slot].token != token {
		return nil
	}
	return slots[slot]
}

// wakeUp makes the queue's thread look at the notes that were left, also if
// it sleeps. Any goroutine may call it.
func (q *completionQueue) wakeUp() {
	q.alarm.Store(true)
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed { // its descriptor may be another file's by now
		q.poller.ring()
	}
}

// answer does what wakeUp was called for.
func (q *completionQueue) answer() {
	q.poller.silence()
	// The alarm goes off before the notes are looked for: what comes later
	// sets it again.
	q.alarm.Store(false)
	for _, c := range *q.slots.Load() {
		if c != nil {
			c.heed()
		}
	}
}

// list notes that a connection has requests for the device.
func (q *completionQueue) list(c *connection) {
	if !c.listed {
		c.listed = true
		q.waiting = append(q.waiting, c)
	}
}

// bury notes that a connection has completed everything but its end.
func (q *completionQueue) bury(c *connection) {
	for i, other := range q.ending {
		if other == c {
			last := len(q.ending) - 1
			q.ending[i], q.ending[last] = q.ending[last], nil
			q.ending = q.ending[:last]
			break
		}
	}
	q.ended = append(q.ended, c)
}

// unlist releases a connection that ended with OpDisconnected.
func (q *completionQueue) unlist() rdma.Completion {
	last := len(q.ended) - 1
	c := q.ended[last]
	q.ended[last] = nil
	q.ended = q.ended[:last]
	c.phase = phaseDetached
	q.detach(c)
	c.domain.release()
	outcome := rdma.StatusSuccess
	if c.Err() != nil {
		outcome = rdma.StatusFatal
	}
	return rdma.Completion{Context: c.context, Opcode: rdma.OpDisconnected, Status: outcome}
}
