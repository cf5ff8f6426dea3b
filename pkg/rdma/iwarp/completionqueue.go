// SPDX-License-Identifier: Apache-2.0

package iwarp

import (
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/epoll"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/registration"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/softrdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/workqueue"
)

// completionQueue drives its connections and collects their completions.
type completionQueue struct {
	softrdma.Queue[connection]
	device  *device
	poller  poller
	staging []byte // input from sockets that does not go straight to registered memory
	regions registration.Held
}

// NewCompletionQueue makes a completion queue. It grows beyond capacity if its connections have
// more requests outstanding.
func (d *device) NewCompletionQueue(capacity int) (rdma.CompletionQueue, error) {
	return softrdma.OpenQueue(&d.Device, capacity, func() (*completionQueue, error) {
		return newCompletionQueue(d, capacity)
	})
}

func newCompletionQueue(d *device, capacity int) (*completionQueue, error) {
	p, err := epoll.New()
	if err != nil {
		return nil, err
	}
	return &completionQueue{
		Queue: softrdma.NewQueue(workqueue.NewCompletions(capacity), p.Wake,
			func(c *connection) { c.Domain.Release() }),
		device: d, poller: poller{Poller: p},
		staging: make([]byte, max(stagingBytes, recordStagingBytes)),
	}, nil
}

// Poll drives all connections once, if necessary, and fills completions.
func (q *completionQueue) Poll(completions []rdma.Completion) int {
	if q.IsShort(completions) {
		q.progress()
	}
	n := q.Completions.Collect(completions)
	if q.Connections.HasEnded() {
		n += q.CollectEnded(completions[n:])
	}
	return n
}

// progress drives all connections once.
func (q *completionQueue) progress() {
	if q.Fairness.BeginTurn() {
		progress.Yield()
	}
	if q.Connections.Notified() {
		q.handleNotification()
	}
	if q.HasScheduled() {
		q.transmitScheduled()
	}
	if len(q.Connections.Open) == 0 {
		return
	}
	// Asking the kernel which sockets are ready costs about half as much as one read that finds
	// nothing. So trying the sockets would not be cheaper for any number of connections.
	events := q.poller.ready(len(q.Connections.Open) + 1)
	softrdma.SortByWait(&q.Fairness, softrdma.Receiving, events, q.sharing)
	for i := range events {
		e := &events[i]
		if e.Fd == epoll.WakeSlot {
			q.poller.ClearWake()
			continue
		}
		at := q.Connections.At(e.Fd)
		if at == nil {
			continue
		}
		c := at.Self
		if epoll.Writable(e) && c.transmitter.blocked {
			c.setBlocked(false)
			c.Flush()
		}
		if epoll.Readable(e) && c.Phase == softrdma.PhaseOpen {
			c.receive()
		}
	}
	if q.HasScheduled() { // responses to Reads that have just arrived
		q.transmitScheduled()
	}
}

// sharing returns the part of an event's connection in the fairness. Events without one
// come first.
func (q *completionQueue) sharing(e epoll.Event) *softrdma.Member {
	if e.Fd != epoll.WakeSlot {
		if c := q.Connections.At(e.Fd); c != nil {
			return &c.Sharing
		}
	}
	return &softrdma.Member{}
}

// transmitScheduled gives each scheduled connection one turn.
func (q *completionQueue) transmitScheduled() {
	for _, c := range q.TakeScheduled() {
		c.Self.Flush()
	}
}

// Descriptor returns the epoll descriptor, which is readable while a socket or the wake-up
// descriptor is. There is none if connections may be streams that are not the kernel's.
func (q *completionQueue) Descriptor() int {
	if !q.device.kernel {
		return progress.NoDescriptor
	}
	return q.poller.Descriptor()
}

// Arm checks once more for work. It has nothing to announce, because the descriptor becomes
// readable by itself.
func (q *completionQueue) Arm() bool {
	if q.HasPending() {
		return false
	}
	events := q.poller.ready(1)
	if len(events) == 1 && events[0].Fd == epoll.WakeSlot {
		// Poll may have handled this notification already, before its wake-up arrived.
		q.poller.ClearWake()
	}
	return len(events) == 0
}

// Disarm does nothing, because Arm announces nothing.
func (q *completionQueue) Disarm() {}

// Clear clears a wake-up that Poll has handled already. Poll consumes everything else that makes
// the descriptor readable.
func (q *completionQueue) Clear() { q.poller.ClearWake() }

// handleNotification activates the connections in the inbox and ends the aborted ones.
func (q *completionQueue) handleNotification() {
	q.poller.ClearWake()
	q.Connections.Acknowledge()
	q.processInbox()
	for i := len(q.Connections.Open) - 1; i >= 0; i-- {
		if c := q.Connections.Open[i].Self; c.Aborted.Load() {
			c.end(c.AbortError(), rdma.StatusFlushed)
		}
	}
}

// processInbox activates the connections in the inbox.
func (q *completionQueue) processInbox() {
	for _, arrived := range q.Activate() {
		c := arrived.Self
		c.Join()
		if err := q.poller.add(&c.socket, c.Slot); err != nil {
			c.end(err, rdma.StatusFatal)
			continue
		}
		c.Schedule()
		if c.socket.tls != nil {
			c.receiveEarly()
		}
	}
}

// Close releases the queue's descriptors. It does nothing if the queue is closed already.
func (q *completionQueue) Close() error {
	return q.Connections.Close(func() {
		q.poller.Close()
		q.device.Uses.Release()
	})
}
