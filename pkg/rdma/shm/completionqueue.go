package shm

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
	poller      *epoll.Poller
	completions workqueue.Completions
	connections connections.Set[connection]
	// scheduled holds the connections that may have something to transmit. It alternates with spare
	// while it is processed.
	scheduled []*connection
	spare     []*connection
	held      registration.Held
	fairness  connections.Fairness
	polls     uint32
	armed     bool
}

func newCompletionQueue(d *device, capacity int) (*completionQueue, error) {
	p, err := epoll.New()
	if err != nil {
		return nil, err
	}
	return &completionQueue{
		device: d, poller: p, connections: connections.Set[connection]{Wake: p.Wake},
		completions: workqueue.NewCompletions(capacity),
	}, nil
}

// pollsPerCheck is how many polls pass between two looks at the sockets, which show that a peer has
// died. Everything else shows in shared memory.
const pollsPerCheck = 1024

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
	if q.polls++; q.polls%pollsPerCheck == 0 {
		q.checkSockets()
	}
	connections.SortByWait(&q.fairness, connections.Receiving, q.connections.Open,
		(*connection).member)
	for i := 0; i < len(q.connections.Open); {
		c := q.connections.Open[i]
		if c.turn(); c.phase == phaseOpen {
			i++ // otherwise another connection has taken its place
		}
	}
	q.transmitScheduled()
	q.held.ReleaseAll()
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
		if c.phase == phaseOpen {
			c.transmit()
		}
	}
	q.spare = list[:0]
}

// checkSockets receives wake-ups and notes the connections whose peers have gone. It returns
// whether there are such.
func (q *completionQueue) checkSockets() (gone bool) {
	for _, e := range q.poller.Ready(epoll.MaxEvents) {
		if e.Fd == epoll.WakeSlot {
			q.poller.ClearWake()
			continue
		}
		c := q.connections.At(e.Fd)
		if c == nil || !c.bell.check() {
			continue
		}
		gone = true
		if !c.hungUp {
			c.hungUp = true
			q.poller.Remove(c.bell.descriptor) // it stays readable
		}
	}
	return gone
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
// descriptor is.
func (q *completionQueue) Descriptor() int { return q.poller.Descriptor() }

// The lowest bits of outboxHeader.sleep.
const (
	sleepBit          = 1 << iota // the writer sleeps
	awaitsConsumption             // it wants to be woken for what the peer consumes, too
	sleepStep
)

// Arm announces to all peers that this side sleeps, and checks once more for work. A peer that has
// published something before it saw the announcement is found by the check, and its wake-up may be
// received here. All others ring.
func (q *completionQueue) Arm() bool {
	if q.completions.Len() > 0 || len(q.scheduled) > 0 || q.connections.HasEnded() ||
		q.connections.Notified() {
		q.Disarm()
		return false
	}
	q.armed = true
	for _, c := range q.connections.Open {
		word := (c.own.header.sleep.Load()/sleepStep + 1) * sleepStep
		word |= sleepBit
		if c.awaitsConsumption() {
			word |= awaitsConsumption
		}
		c.own.header.sleep.Store(word)
	}
	if q.checkSockets() || q.hasWork() {
		q.Disarm()
		return false
	}
	return true
}

// hasWork reports whether a turn would do something.
func (q *completionQueue) hasWork() bool {
	if q.connections.Notified() {
		return true
	}
	for _, c := range q.connections.Open {
		h := c.peer.header
		if c.hungUp || h.tail.Load() != c.position || h.ended.Load() != 0 {
			return true
		}
		consumed := h.consumed.Load()
		if c.hasUnsent() && consumed != c.blockedAt ||
			c.oldestAwaitsPeer() && consumed >= c.sends.At(c.sends.Head).end {
			return true
		}
	}
	return false
}

// awaitsConsumption reports whether the connection continues when the peer has consumed more of the
// ring.
func (c *connection) awaitsConsumption() bool { return c.hasUnsent() || c.oldestAwaitsPeer() }

// oldestAwaitsPeer reports whether the next request to complete is a Write whose data the peer
// copies.
func (c *connection) oldestAwaitsPeer() bool {
	return c.sends.Head != c.sends.Next && c.sends.At(c.sends.Head).awaitsPeer
}

// Disarm tells all peers that this side is awake.
func (q *completionQueue) Disarm() {
	if !q.armed {
		return
	}
	q.armed = false
	for _, c := range q.connections.Open {
		if word := c.own.header.sleep.Load(); word&sleepBit != 0 {
			c.own.header.sleep.Store(word &^ (sleepBit | awaitsConsumption))
		}
	}
}

// Drain receives the wake-ups.
func (q *completionQueue) Drain() { q.checkSockets() }

// handleNotification activates the connections in the inbox and ends the aborted ones.
func (q *completionQueue) handleNotification() {
	q.poller.ClearWake()
	q.connections.Acknowledge()
	q.processInbox()
	for i := len(q.connections.Open) - 1; i >= 0; i-- {
		if c := q.connections.Open[i]; c.aborted.Load() {
			c.end(endingAborted, status.Errorf(status.ConnectionAborted,
				"connection to %v was aborted", c.parameters.Remote), rdma.StatusFlushed)
		}
	}
}

// processInbox activates the connections in the inbox.
func (q *completionQueue) processInbox() {
	for _, c := range q.connections.Arrived() {
		c.slot = q.connections.Activate(c)
		q.fairness.Join(&c.sharing, c.domain)
		if err := q.poller.Add(c.bell.descriptor, c.slot); err != nil {
			c.end(endingAborted, err, rdma.StatusFatal)
			continue
		}
		q.schedule(c)
	}
}

// remove moves a connection from the open ones to the ended ones. It is called before the socket is
// closed.
func (q *completionQueue) remove(c *connection) {
	if !c.hungUp {
		q.poller.Remove(c.bell.descriptor)
	}
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

// Close releases the queue's descriptors. It does nothing if the queue is closed already.
func (q *completionQueue) Close() error {
	return q.connections.Close(func() {
		q.poller.Close()
		q.device.Uses.Release()
	})
}
