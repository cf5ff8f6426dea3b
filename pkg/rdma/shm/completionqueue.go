// SPDX-License-Identifier: Apache-2.0

package shm

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
	poller  *epoll.Poller
	held    registration.Held
	watches watches
	polls   uint32
	armed   bool
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
		device: d, poller: p,
	}, nil
}

// pollsPerCheck is how many polls pass between two looks at the sockets, which show that a peer has
// died. Everything else shows in shared memory.
const pollsPerCheck = 1024

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

// progress drives all connections once that have something to do.
func (q *completionQueue) progress() {
	if q.Fairness.BeginTurn() {
		progress.Yield()
	}
	if q.Connections.Notified() {
		q.handleNotification()
	}
	if q.polls++; q.polls%pollsPerCheck == 0 {
		q.checkSockets()
	}
	for _, due := range q.watches.collect(&q.Fairness) {
		c := due.Self
		if c.turn(); c.Phase == softrdma.PhaseOpen {
			q.watches.update(c)
		}
	}
	if q.HasScheduled() {
		q.transmitScheduled()
	}
	q.held.ReleaseAll()
}

// transmitScheduled gives each scheduled connection one turn.
func (q *completionQueue) transmitScheduled() {
	for _, scheduled := range q.TakeScheduled() {
		if c := scheduled.Self; c.Phase == softrdma.PhaseOpen {
			c.transmit()
		}
	}
}

// checkSockets receives wake-ups and notes the connections whose peers have gone. It returns
// whether there are such.
func (q *completionQueue) checkSockets() (gone bool) {
	for _, e := range q.poller.Ready(epoll.MaxEvents) {
		if e.Fd == epoll.WakeSlot {
			q.poller.ClearWake()
			continue
		}
		at := q.Connections.At(e.Fd)
		if at == nil || !at.Self.bell.check() {
			continue
		}
		c := at.Self
		gone = true
		if !c.hungUp {
			c.hungUp = true
			q.watches.update(c)
			q.poller.Remove(c.bell.descriptor) // it stays readable
		}
	}
	return gone
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
	if q.HasPending() {
		q.Disarm()
		return false
	}
	q.armed = true
	for _, open := range q.Connections.Open {
		c := open.Self
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
	if q.Connections.Notified() {
		return true
	}
	for _, open := range q.Connections.Open {
		c := open.Self
		if c.hungUp || q.watches.bySlot[c.Slot].hasNews() {
			return true
		}
		consumed := c.peer.header.consumed.Load()
		if c.hasUnsent() && consumed != c.blockedAt ||
			c.oldestAwaitsPeer() && consumed >= c.Sends.At(c.Sends.Head).Extra.end {
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
	return c.Sends.Head != c.Sends.Next && c.Sends.At(c.Sends.Head).Extra.awaitsPeer
}

// Disarm tells all peers that this side is awake.
func (q *completionQueue) Disarm() {
	if !q.armed {
		return
	}
	q.armed = false
	for _, open := range q.Connections.Open {
		c := open.Self
		if word := c.own.header.sleep.Load(); word&sleepBit != 0 {
			c.own.header.sleep.Store(word &^ (sleepBit | awaitsConsumption))
		}
	}
}

// Clear receives the wake-ups.
func (q *completionQueue) Clear() { q.checkSockets() }

// handleNotification activates the connections in the inbox and ends the aborted ones.
func (q *completionQueue) handleNotification() {
	q.poller.ClearWake()
	q.Connections.Acknowledge()
	q.processInbox()
	for i := len(q.Connections.Open) - 1; i >= 0; i-- {
		if c := q.Connections.Open[i].Self; c.Aborted.Load() {
			c.end(endingAborted, c.AbortError(), rdma.StatusFlushed)
		}
	}
}

// processInbox activates the connections in the inbox.
func (q *completionQueue) processInbox() {
	for _, arrived := range q.Activate() {
		c := arrived.Self
		c.Join()
		q.watches.add(c)
		if err := q.poller.Add(c.bell.descriptor, c.Slot); err != nil {
			c.end(endingAborted, err, rdma.StatusFatal)
			continue
		}
		c.Schedule()
	}
}

// remove moves a connection from the open ones to the ended ones. It is called before the socket is
// closed.
func (q *completionQueue) remove(c *connection) {
	if !c.hungUp {
		q.poller.Remove(c.bell.descriptor)
	}
	q.watches.remove(c)
	c.Leave()
}

// Close releases the queue's descriptors. It does nothing if the queue is closed already.
func (q *completionQueue) Close() error {
	return q.Connections.Close(func() {
		q.poller.Close()
		q.device.Uses.Release()
	})
}
