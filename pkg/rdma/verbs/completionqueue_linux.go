//go:build cgo

package verbs

import (
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/rdma/verbs/internal/ibv"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// completionQueue implements rdma.CompletionQueue. Only the thread that polls the queue uses the
// first group of fields. Any goroutine may use the atomic fields, and the rest while holding mu.
type completionQueue struct {
	device       *device
	cq           *ibv.CompletionQueue
	poller       *poller
	completions  completionRing
	unflushed    []*connection // with requests posted by the caller but not to the device
	closing      []*connection // to be closed once Poll has seen the device's queue empty
	disconnected []*connection // whose OpDisconnected has not been polled
	// polled holds the latest completions from the device. Those from next to end are not
	// dispatched.
	polled    [ibv.MaxPoll]ibv.Completion
	next, end int
	// notifyRequested is set while the device is due to signal the next completion.
	notifyRequested bool

	// wakePending is set when wake was called since the thread last looked.
	wakePending atomic.Bool
	slots       atomic.Pointer[[]*connection] // by slotOf(token); replaced at each change
	attached    atomic.Int32                  // connections before their OpDisconnected
	released    atomic.Int64                  // requests of detached connections, still in reserved
	discards    sync.WaitGroup                // connections being discarded

	mu         sync.Mutex // guards the fields below, and changes of slots
	generation uint32
	reserved   int // completions that attached connections can have outstanding
	closed     bool
}

// minCompletions is the smallest capacity with which a completion queue is created, because not
// every driver can enlarge one later.
const minCompletions = 1 << 14

func newCompletionQueue(d *device, capacity int) (*completionQueue, error) {
	capacity = min(max(capacity, minCompletions), d.limits.Completions)
	cq, err := d.context.NewCompletionQueue(capacity)
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

// Close implements rdma.CompletionQueue. It first waits for connections that are being discarded.
// Any goroutine may call it, but not while another one polls the queue.
func (q *completionQueue) Close() error {
	q.discards.Wait()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil
	}
	if n := q.attached.Load(); n > 0 {
		return status.Errorf(status.InUse,
			"close completion queue: %d connections are still attached", n)
	}
	q.closed = true
	q.poller.close()
	err := q.cq.Close()
	q.device.release()
	return err
}

// attach gives a connection a slot and reserves room for its completions. Any goroutine may call
// it.
func (q *completionQueue) attach(c *connection) error {
	requests := c.requests()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return status.Errorf(status.BadState, "completion queue is closed")
	}
	if q.reserved+requests > q.cq.Capacity() {
		return status.Errorf(status.NoMemory,
			"completion queue of %d entries has no room for %d more requests: its other "+
				"connections can have %d outstanding: use more workers, fewer queues, or a smaller "+
				"queue depth",
			q.cq.Capacity(), requests, q.reserved)
	}
	slots := *q.slots.Load()
	slot := 0
	for slot < len(slots) && slots[slot] != nil {
		slot++
	}
	if slot == maxSlots {
		return status.Errorf(status.Full,
			"completion queue already has the maximum of %d connections", maxSlots)
	}
	q.generation++
	c.token = newToken(slot, q.generation)
	q.setSlot(slot, c)
	q.reserved += requests
	q.attached.Add(1)
	return nil
}

// setSlot publishes a copy of the slots with one changed. The caller holds mu.
func (q *completionQueue) setSlot(slot int, c *connection) {
	old := *q.slots.Load()
	slots := make([]*connection, max(len(old), slot+1))
	copy(slots, old)
	slots[slot] = c
	q.slots.Store(&slots)
}

// detach removes a connection whose queue pair has been destroyed. Its completions may still be in
// the device's queue, so its room stays reserved until Poll has seen that queue empty. Any
// goroutine may call it.
func (q *completionQueue) detach(c *connection) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.setSlot(slotOf(c.token), nil)
	q.released.Add(int64(c.requests()))
	q.attached.Add(-1)
}

// requests returns how many completions of the connection can be outstanding.
func (c *connection) requests() int { return int(c.sends.limit + c.receives.limit) }

// Descriptor returns the descriptor to wait on between Arm and Drain.
func (q *completionQueue) Descriptor() int { return q.poller.descriptor }

// Arm implements progress.Waiter. It requests a notification before it polls the device's queue
// once more, because the device does not signal completions that came before the request.
func (q *completionQueue) Arm() bool {
	if q.completions.len() > 0 || len(q.disconnected) > 0 || len(q.closing) > 0 ||
		q.wakePending.Load() {
		return false
	}
	// A connection stays in the list after Flush, until the next Poll.
	if slices.ContainsFunc(q.unflushed, func(c *connection) bool { return len(c.unflushed) > 0 }) {
		return false
	}
	// wake sets wakePending before it signals: Poll may have handled the flag but missed the
	// signal.
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

// Disarm implements progress.Waiter. It leaves a requested notification for the next Arm.
func (q *completionQueue) Disarm() {}

// Drain consumes what made the descriptor readable.
func (q *completionQueue) Drain() {
	q.poller.clear()
	if q.cq.ConsumeNotifications() {
		q.notifyRequested = false
	}
}

// wake makes the queue's thread call handleWake, ending its sleep if necessary. Any goroutine may
// call it.
func (q *completionQueue) wake() {
	q.wakePending.Store(true)
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed { // else the descriptor may already belong to another file
		q.poller.signal()
	}
}

// poller combines everything that can wake a completion queue's thread into one descriptor: the
// device's notifications, and signals from other threads.
type poller struct {
	descriptor int // epoll
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
			return nil, status.Errorf(status.OperatingSystem,
				"add descriptor %d to epoll: %w", d, err)
		}
	}
	return p, nil
}

func (p *poller) close() {
	p.eventFD.close()
	_ = unix.Close(p.descriptor)
}
