//go:build verbs

package verbs

import (
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/rdma/verbs/internal/ibv"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// completionQueue implements rdma.CompletionQueue. It belongs to the thread
// that polls it, but for alarm, slots, and what mu guards.
type completionQueue struct {
	device       *device
	cq           *ibv.CompletionQueue
	poller       *poller
	completions  completionRing
	unflushed    []*connection // with requests that the device does not have yet
	closing      []*connection // to be finished when the device's queue was seen empty
	disconnected []*connection // OpDisconnected not yet collected
	// work holds what was polled; taken of it are first to last.
	polled    [ibv.MaxPoll]ibv.Completion
	next, end int
	// requested: the device is to notify of the next completion.
	notifyRequested bool

	// alarm says that another thread has left a note at a connection.
	wakePending atomic.Bool
	slots       atomic.Pointer[[]*connection]
	attached    atomic.Int32   // connections whose OpDisconnected is not collected
	released    atomic.Int64   // those of reserved whose connections are gone
	discards    sync.WaitGroup // connections that have been abandoned

	mu         sync.Mutex // guards what follows, and changes of slots
	generation uint32
	reserved   int // requests that attached connections can have outstanding
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
	q.discards.Wait()
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
	q.released.Add(int64(c.requests()))
	q.attached.Add(-1)
}

// requests is how many completions the connection can have.
func (c *connection) requests() int { return int(c.sends.limit + c.receives.limit) }

// Descriptor implements progress.Waiter.
func (q *completionQueue) Descriptor() int { return q.poller.descriptor }

// Arm implements progress.Waiter. A notification is requested first, then the
// device's queue is looked at once more: what was added before the request
// would not be notified of.
func (q *completionQueue) Arm() bool {
	if q.completions.len() > 0 || len(q.disconnected) > 0 || len(q.closing) > 0 || q.wakePending.Load() {
		return false
	}
	// Connections stay listed after a Flush, until the next Poll.
	if slices.ContainsFunc(q.unflushed, func(c *connection) bool { return len(c.unflushed) > 0 }) {
		return false
	}
	// The late half of a wake-up that Poll has already answered.
	q.poller.clear()
	if q.notifyRequested && q.cq.ConsumeNotifications() {
		q.notifyRequested = false
	}
	if !q.notifyRequested {
		if err := q.cq.RequestNotification(); err != nil {
			q.fail(err)
			return false
		}
		q.notifyRequested = true
	}
	if q.next == q.end {
		q.pollDevice()
	}
	return q.next == q.end && !q.wakePending.Load()
}

// Disarm implements progress.Waiter. A notification that is still requested
// is used by the next Arm.
func (q *completionQueue) Disarm() {}

// Drain implements progress.Waiter.
func (q *completionQueue) Drain() {
	q.poller.clear()
	if q.cq.ConsumeNotifications() {
		q.notifyRequested = false
	}
}

// wakeUp makes the queue's thread look at the notes that were left, also if
// it sleeps. Any goroutine may call it.
func (q *completionQueue) wake() {
	q.wakePending.Store(true)
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed { // its descriptor may be another file's by now
		q.poller.signal()
	}
}

// poller is one descriptor for what can wake a completion queue's thread: the
// device's notifications, and an alarm that other threads ring.
type poller struct {
	descriptor int
	eventFD
}

func newPoller(notifications int) (*poller, error) {
	descriptor, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, status.Errorf(status.OperatingSystem, "create epoll descriptor: %w", err)
	}
	wake, err := newEventFD()
	if err != nil {
		_ = unix.Close(descriptor)
		return nil, err
	}
	p := &poller{descriptor: descriptor, eventFD: wake}
	for _, d := range []int{notifications, int(wake)} {
		event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(d)}
		if err := unix.EpollCtl(descriptor, unix.EPOLL_CTL_ADD, d, &event); err != nil {
			p.close()
			return nil, status.Errorf(status.OperatingSystem, "watch descriptor: %w", err)
		}
	}
	return p, nil
}

func (p *poller) close() {
	p.eventFD.close()
	_ = unix.Close(p.descriptor)
}
