// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package verbs

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/workqueue"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs/internal/ibv"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// completionQueue implements rdma.CompletionQueue. Only the thread that polls the queue uses the
// first group of fields. Any goroutine may use the atomic fields, and the rest while holding mu.
type completionQueue struct {
	device       *device
	capacity     int // of each device queue
	poller       *poller
	polling      []*deviceQueue // to be polled
	completions  workqueue.Completions
	unflushed    []*connection // with requests posted by the caller but not to the device
	closing      []*connection // to be closed once Poll has seen the device's queue empty
	disconnected []*connection // whose OpDisconnected has not been polled
	// polled holds the latest completions from the device. Those from next to end are not
	// dispatched.
	polled    [ibv.MaxPoll]ibv.Completion
	next, end int

	// wakePending is set when wake was called since the thread last looked.
	wakePending atomic.Bool
	slots       atomic.Pointer[[]*connection] // by slotOf(token); replaced at each change
	attached    atomic.Int32                  // connections before their OpDisconnected
	discards    sync.WaitGroup                // connections being discarded

	mu         sync.Mutex // guards the fields below, and changes of slots
	queues     []*deviceQueue
	generation uint32
	closed     bool
}

// deviceQueue is an ibv_cq of a completion queue. Queue pairs can use only an ibv_cq of the context
// on which their protection domain exists. So there is one for the device's own context, and one
// for each context of another library. The first connection on a context creates it. The completion
// queue's thread polls it from the first connection that opens: to the end on the device's own
// context, and until the last one has ended on another. It is destroyed with its last connection,
// unless it is still polled, because the other library may close its device then.
type deviceQueue struct {
	context *ibv.Context
	cq      *ibv.CompletionQueue
	foreign bool
	// notifyRequested is set while the device is due to signal the next completion. Only the thread
	// that polls uses it and open.
	notifyRequested bool
	open            int          // connections that have opened and are attached
	freed           atomic.Int64 // requests of detached connections, still in reserved

	// The completion queue's mu guards the rest. Only the thread that polls changes polled.
	polled   bool // in completionQueue.polling
	attached int
	reserved int // completions that attached connections can have outstanding
}

// minCompletions is the smallest capacity with which a completion queue is created, because not
// every driver can enlarge one later.
const minCompletions = 1 << 14

func newCompletionQueue(d *device, capacity int) (*completionQueue, error) {
	poller, err := newPoller()
	if err != nil {
		return nil, err
	}
	q := &completionQueue{
		device: d, poller: poller, completions: workqueue.NewCompletions(4 * ibv.MaxPoll),
		capacity: min(max(capacity, minCompletions), d.limits.Completions),
	}
	q.slots.Store(&[]*connection{})
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
	var errs []error
	for _, dq := range q.queues {
		errs = append(errs, dq.cq.Close())
	}
	q.device.release()
	return errors.Join(errs...)
}

// Poll implements rdma.CompletionQueue. If the completion ring already holds enough completions for
// the caller, Poll does not touch the device. The OpDisconnected of a connection follows all its
// other completions.
func (q *completionQueue) Poll(completions []rdma.Completion) int {
	if len(completions) == 0 || q.completions.Len() < len(completions) {
		q.progress()
	}
	n := q.completions.Collect(completions)
	for ; n < len(completions) && len(q.disconnected) > 0; n++ {
		last := len(q.disconnected) - 1
		c := q.disconnected[last]
		q.disconnected[last] = nil
		q.disconnected = q.disconnected[:last]
		c.phase = phaseDetached
		q.stopPolling(c.deviceQueue)
		q.detach(c)
		c.domain.release()
		outcome := rdma.StatusSuccess
		if c.Err() != nil {
			outcome = rdma.StatusFatal
		}
		completions[n] = rdma.Completion{
			Context: c.context, Opcode: rdma.OpDisconnected, Status: outcome,
		}
	}
	return n
}

// progress flushes the connections, polls each device queue once, and moves connections towards
// their end.
func (q *completionQueue) progress() {
	if q.wakePending.Load() {
		q.handleWake()
	}
	for i, c := range q.unflushed {
		q.unflushed[i] = nil
		c.listed = false
		c.flush()
	}
	q.unflushed = q.unflushed[:0]
	// Completions that Arm polled earlier say nothing about the present.
	if q.next < q.end {
		q.dispatchPolled()
		return
	}
	// A connection that opens meanwhile may append to polling.
	empty := true
	for i := 0; i < len(q.polling); i++ {
		q.pollDevice(q.polling[i])
		empty = empty && q.end < len(q.polled)
		q.dispatchPolled()
	}
	// A queue was empty if the poll above returned fewer completions than it asked for.
	if !empty {
		return
	}
	for _, dq := range q.polling {
		// No completions of detached connections are left, so their room is free again.
		if dq.freed.Load() > 0 {
			q.mu.Lock()
			dq.reserved -= int(dq.freed.Swap(0))
			q.mu.Unlock()
		}
	}
	for len(q.closing) > 0 {
		q.closing[len(q.closing)-1].finishClose()
	}
}

// handleWake handles what other threads called wake for: finished handshakes and interruptions.
func (q *completionQueue) handleWake() {
	q.poller.clear()
	// Clear the flag before looking: anything that comes later sets it again.
	q.wakePending.Store(false)
	for _, c := range *q.slots.Load() {
		if c == nil {
			continue
		}
		c.openIfEstablished()
		cause := c.interruption.Load()
		switch {
		case cause == nil || c.phase != phaseOpen:
		case errors.Is(*cause, errPeerDisconnected):
			c.beginClose(c.disconnectReason())
		default:
			c.beginClose(*cause)
		}
	}
}

// pollDevice polls a device queue into polled, whose entries must all have been dispatched.
func (q *completionQueue) pollDevice(dq *deviceQueue) {
	n, err := dq.cq.Poll(q.polled[:])
	if err != nil {
		q.fail(err)
	}
	q.next, q.end = 0, n
}

func (q *completionQueue) dispatchPolled() {
	for ; q.next < q.end; q.next++ {
		q.dispatch(&q.polled[q.next])
	}
}

// fail ends all connections of a completion queue that has failed.
func (q *completionQueue) fail(err error) {
	q.device.log.Error("completion queue failed", zap.Error(err))
	for _, c := range *q.slots.Load() {
		if c != nil {
			c.interrupt(fmt.Errorf("completion queue failed: %w", err))
		}
	}
}

// attach gives a connection a slot and reserves room for its completions. Any goroutine may call
// it.
func (q *completionQueue) attach(c *connection) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return status.Errorf(status.BadState, "completion queue is closed")
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
	dq, err := q.deviceQueueOn(c.domain.context)
	if err != nil {
		return err
	}
	if requests := c.requests(); dq.reserved+requests > dq.cq.Capacity() {
		err := status.Errorf(status.NoMemory,
			"completion queue of %d entries has no room for %d more requests: its other "+
				"connections can have %d outstanding: use more workers, fewer queues, or a smaller "+
				"queue depth",
			dq.cq.Capacity(), requests, dq.reserved)
		return errors.Join(err, q.destroyIdle(dq))
	}
	dq.attached++
	dq.reserved += c.requests()
	q.generation++
	c.deviceQueue, c.token = dq, newToken(slot, q.generation)
	q.setSlot(slot, c)
	q.attached.Add(1)
	return nil
}

// deviceQueueOn returns the queue on a context, which it creates if there is none. The caller holds
// mu.
func (q *completionQueue) deviceQueueOn(context *ibv.Context) (*deviceQueue, error) {
	for _, dq := range q.queues {
		if dq.context.Is(context) {
			return dq, nil
		}
	}
	cq, err := context.NewCompletionQueue(q.capacity)
	if err != nil {
		return nil, err
	}
	dq := &deviceQueue{context: context, cq: cq, foreign: !context.Is(q.device.context)}
	q.queues = append(q.queues, dq)
	return dq, nil
}

// destroyIdle destroys a queue that has no connections and is not polled. The caller holds mu.
func (q *completionQueue) destroyIdle(dq *deviceQueue) error {
	if dq.attached > 0 || dq.polled {
		return nil
	}
	i := slices.Index(q.queues, dq)
	q.queues = slices.Delete(q.queues, i, i+1)
	return dq.cq.Close()
}

// startPolling counts a connection that opens, and has its device queue polled.
func (q *completionQueue) startPolling(dq *deviceQueue) error {
	dq.open++
	if dq.polled {
		return nil
	}
	q.mu.Lock()
	dq.polled = true
	q.mu.Unlock()
	q.polling = append(q.polling, dq)
	return q.poller.add(dq.cq.Descriptor())
}

// stopPolling counts an open connection that ends. If it was the last on the context of another
// library, its device queue is no longer polled.
func (q *completionQueue) stopPolling(dq *deviceQueue) {
	dq.open--
	if dq.open > 0 || !dq.foreign {
		return
	}
	q.poller.remove(dq.cq.Descriptor())
	i := slices.Index(q.polling, dq)
	q.polling = slices.Delete(q.polling, i, i+1)
	q.mu.Lock()
	dq.polled = false
	q.mu.Unlock()
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
	q.attached.Add(-1)
	dq := c.deviceQueue
	dq.attached--
	dq.freed.Add(int64(c.requests()))
	if err := q.destroyIdle(dq); err != nil {
		q.device.log.Error("cannot destroy completion queue", zap.Error(err))
	}
}

// requests returns how many completions of the connection can be outstanding.
func (c *connection) requests() int { return c.sends.Limit() + c.receives.Limit() }

// Descriptor returns the descriptor to wait on between Arm and Clear.
func (q *completionQueue) Descriptor() int { return q.poller.descriptor }

// Arm implements progress.Waiter. It requests a notification before it polls the device's queue
// once more, because the device does not signal completions that came before the request.
func (q *completionQueue) Arm() bool {
	if q.completions.Len() > 0 || len(q.disconnected) > 0 || len(q.closing) > 0 ||
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
	for _, dq := range q.polling {
		if dq.notifyRequested && dq.cq.ConsumeNotifications() {
			dq.notifyRequested = false
		}
		if !dq.notifyRequested {
			if err := dq.cq.RequestNotification(); err != nil {
				q.fail(err)
				return false
			}
			dq.notifyRequested = true
		}
		if q.next == q.end {
			q.pollDevice(dq)
		}
	}
	return q.next == q.end && !q.wakePending.Load()
}

// Disarm implements progress.Waiter. It leaves a requested notification for the next Arm.
func (q *completionQueue) Disarm() {}

// Clear consumes what made the descriptor readable.
func (q *completionQueue) Clear() {
	q.poller.clear()
	for _, dq := range q.polling {
		if dq.cq.ConsumeNotifications() {
			dq.notifyRequested = false
		}
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
