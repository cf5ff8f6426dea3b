//go:build verbs

package verbs

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/rdma/verbs/internal/ibv"
	"github.com/zc-relay/zc-relay/pkg/status"
)

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

// minCompletions is the least capacity of a completion queue. Not every
// driver can make one larger later.
const minCompletions = 1 << 14

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

// Descriptor implements progress.Waiter.
func (q *completionQueue) Descriptor() int { return q.poller.descriptor }

// Arm implements progress.Waiter. A notification is requested first, then the
// device's queue is looked at once more: what was added before the request
// would not be notified of.
func (q *completionQueue) Arm() bool {
	if q.completions.len() > 0 || len(q.ended) > 0 || len(q.ending) > 0 || q.unsubmitted() || q.alarm.Load() {
		return false
	}
	// The late half of a wake-up that Poll has already answered.
	q.poller.silence()
	if q.requested && q.cq.TakeNotifications() {
		q.requested = false
	}
	if !q.requested {
		if err := q.cq.RequestNotification(); err != nil {
			q.fail(err)
			return false
		}
		q.requested = true
	}
	if q.first == q.last {
		q.fetch()
	}
	return q.first == q.last && !q.alarm.Load()
}

// unsubmitted tells whether there is a request that the device does not have.
// Connections stay listed after a Flush, until the next Poll.
func (q *completionQueue) unsubmitted() bool {
	for _, c := range q.waiting {
		if len(c.posted) > 0 {
			return true
		}
	}
	return false
}

// Disarm implements progress.Waiter. A notification that is still requested
// is used by the next Arm.
func (q *completionQueue) Disarm() {}

// Drain implements progress.Waiter.
func (q *completionQueue) Drain() {
	q.poller.silence()
	if q.cq.TakeNotifications() {
		q.requested = false
	}
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

// poller is one descriptor for what can wake a completion queue's thread: the
// device's notifications, and an alarm that other threads ring.
type poller struct {
	descriptor int
	alarm      int // eventfd, private to this process
}

func newPoller(notifications int) (*poller, error) {
	descriptor, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, status.Errorf(status.OperatingSystem, "create epoll descriptor: %w", err)
	}
	alarm, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		_ = unix.Close(descriptor)
		return nil, status.Errorf(status.OperatingSystem, "create event descriptor: %w", err)
	}
	p := &poller{descriptor: descriptor, alarm: alarm}
	for _, d := range []int{notifications, alarm} {
		event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(d)}
		if err := unix.EpollCtl(descriptor, unix.EPOLL_CTL_ADD, d, &event); err != nil {
			p.close()
			return nil, status.Errorf(status.OperatingSystem, "watch descriptor: %w", err)
		}
	}
	return p, nil
}

func (p *poller) close() {
	_ = unix.Close(p.alarm)
	_ = unix.Close(p.descriptor)
}

// ring wakes the thread. A full counter means that it has been rung already.
func (p *poller) ring() { _, _ = unix.Write(p.alarm, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

// silence consumes the ringing.
func (p *poller) silence() {
	var counter [8]byte
	_, _ = unix.Read(p.alarm, counter[:])
}
