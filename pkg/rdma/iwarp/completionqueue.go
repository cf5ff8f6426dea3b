package iwarp

import (
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/connections"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/epoll"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/registration"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/workqueue"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// completionQueue drives its connections and collects their completions. Everything in it belongs
// to the thread that polls it, except connections.
type completionQueue struct {
	device      *device
	poller      poller
	completions workqueue.Completions
	connections connections.Set[connection]
	// scheduled holds the connections that may have something to transmit. It alternates with spare
	// while it is processed.
	scheduled []*connection
	spare     []*connection
	staging   []byte // input from sockets that does not go straight to registered memory
	regions   registration.Held
	fairness  connections.Fairness
}

func newCompletionQueue(d *device, capacity int) (*completionQueue, error) {
	p, err := epoll.New()
	if err != nil {
		return nil, err
	}
	return &completionQueue{
		device: d, poller: poller{Poller: p},
		connections: connections.Set[connection]{Wake: p.Wake},
		completions: workqueue.NewCompletions(capacity), staging: make([]byte, stagingBytes),
	}, nil
}

// Poll drives all connections once and fills completions. If enough completions are waiting
// already, it does not drive the connections, so that a caller that has fallen behind creates no
// more work for itself.
func (q *completionQueue) Poll(completions []rdma.Completion) int {
	if len(completions) == 0 || q.completions.Len() < len(completions) {
		q.progress()
	}
	n := q.completions.Collect(completions)
	// OpDisconnected comes after all other completions.
	for n < len(completions) && q.connections.HasEnded() {
		completions[n] = q.detach()
		n++
	}
	return n
}

// progress drives all connections once.
func (q *completionQueue) progress() {
	if q.fairness.BeginTurn() {
		progress.Yield()
	}
	if q.connections.Notified() {
		q.handleNotification()
	}
	q.transmitScheduled()
	if len(q.connections.Open) == 0 {
		return
	}
	// Asking the kernel which sockets are ready costs about half as much as one read that finds
	// nothing. So trying the sockets would not be cheaper for any number of connections.
	events := q.poller.ready(len(q.connections.Open) + 1)
	connections.SortByWait(&q.fairness, connections.Receiving, events, q.member)
	for i := range events {
		e := &events[i]
		if e.Fd == epoll.WakeSlot {
			q.poller.ClearWake()
			continue
		}
		c := q.connections.At(e.Fd)
		if c != nil && epoll.Writable(e) && c.transmitter.blocked {
			q.setBlocked(c, false)
			c.Flush()
		}
		if c != nil && epoll.Readable(e) && c.phase == phaseOpen {
			c.receive()
		}
	}
	q.transmitScheduled() // responses to Reads that have just arrived
}

// transmitScheduled gives each scheduled connection one turn. A connection that needs another turn
// schedules itself again, for the next call.
func (q *completionQueue) transmitScheduled() {
	if len(q.scheduled) == 0 {
		return
	}
	list := q.scheduled
	connections.SortByWait(&q.fairness, connections.Transmitting, list, (*connection).member)
	q.scheduled = q.spare[:0]
	for i, c := range list {
		list[i] = nil
		c.scheduled = false
		c.Flush()
	}
	q.spare = list[:0]
}

// detach removes the connection that ended last and returns its OpDisconnected.
func (q *completionQueue) detach() rdma.Completion {
	c := q.connections.Detach()
	c.phase = phaseDetached
	c.domain.Release()
	outcome := rdma.StatusSuccess
	if c.Err() != nil {
		outcome = rdma.StatusFatal
	}
	return rdma.Completion{Context: c.context, Opcode: rdma.OpDisconnected, Status: outcome}
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
	if q.completions.Len() > 0 || len(q.scheduled) > 0 || q.connections.HasEnded() ||
		q.connections.Notified() {
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

// Drain clears a wake-up that Poll has handled already. Poll consumes everything else that makes
// the descriptor readable.
func (q *completionQueue) Drain() { q.poller.ClearWake() }

// handleNotification activates the connections in the inbox and ends the aborted ones.
func (q *completionQueue) handleNotification() {
	q.poller.ClearWake()
	q.connections.Acknowledge()
	q.processInbox()
	for i := len(q.connections.Open) - 1; i >= 0; i-- {
		if c := q.connections.Open[i]; c.aborted.Load() {
			c.end(status.Errorf(status.ConnectionAborted,
				"connection to %v was aborted", c.parameters.Remote), rdma.StatusFlushed)
		}
	}
}

// processInbox activates the connections in the inbox.
func (q *completionQueue) processInbox() {
	for _, c := range q.connections.Arrived() {
		c.slot = q.connections.Activate(c)
		q.fairness.Join(&c.sharing, c.domain)
		if err := q.poller.add(&c.socket, c.slot); err != nil {
			c.end(err, rdma.StatusFatal)
			continue
		}
		q.schedule(c)
	}
}

// remove moves a connection from the open ones to the ended ones. It is called before the socket is
// closed.
func (q *completionQueue) remove(c *connection) {
	q.poller.remove(&c.socket, c.slot)
	q.connections.End(c, c.slot)
	q.fairness.Leave(&c.sharing)
}

// schedule gives the connection a turn to transmit in the current or next Poll.
func (q *completionQueue) schedule(c *connection) {
	if !c.scheduled {
		c.scheduled = true
		q.scheduled = append(q.scheduled, c)
	}
}

// setBlocked records whether the connection's send buffer is full. While it is, the poller reports
// when the socket becomes writable.
func (q *completionQueue) setBlocked(c *connection, blocked bool) {
	c.transmitter.blocked = blocked
	if err := q.poller.watchWritable(&c.socket, c.slot, blocked); err != nil {
		c.end(err, rdma.StatusFatal)
	}
}

// Close releases the queue's descriptors. It does nothing if the queue is closed already.
func (q *completionQueue) Close() error {
	return q.connections.Close(func() {
		q.poller.Close()
		q.device.Uses.Release()
	})
}
