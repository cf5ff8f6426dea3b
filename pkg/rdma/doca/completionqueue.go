//go:build cgo

package doca

import (
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/connections"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/epoll"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/workqueue"
)

// completionQueue drives its connections, each of which has a progress engine of its own, and
// collects their completions. It belongs to the thread that polls it, except connections.
type completionQueue struct {
	device      *device
	poller      *epoll.Poller
	completions workqueue.Completions
	connections connections.Set[connection]
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

// Poll drives all connections once and fills completions.
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

func (q *completionQueue) progress() {
	if q.connections.Notified() {
		q.poller.ClearWake()
		q.connections.Acknowledge()
		q.processInbox()
	}
	// Backwards, because a turn may remove its connection.
	for i := len(q.connections.Open) - 1; i >= 0; i-- {
		q.connections.Open[i].turn()
	}
}

// processInbox activates the connections in the inbox.
func (q *completionQueue) processInbox() {
	for _, c := range q.connections.Arrived() {
		c.slot = q.connections.Activate(c)
		if descriptor := c.rdma.Descriptor(); descriptor != progress.NoDescriptor {
			if err := q.poller.Add(descriptor, c.slot); err != nil {
				c.fail(err)
			}
		}
	}
}

// remove moves a connection from the open ones to the ended ones.
func (q *completionQueue) remove(c *connection) {
	if descriptor := c.rdma.Descriptor(); descriptor != progress.NoDescriptor {
		q.poller.Remove(descriptor)
	}
	q.connections.End(c, c.slot)
}

// detach removes the connection that ended last, and returns its OpDisconnected.
func (q *completionQueue) detach() rdma.Completion {
	c := q.connections.Detach()
	c.phase = phaseDetached
	if err := c.discard(); err != nil {
		q.device.log.Error("an RDMA connection cannot be released", zap.Error(err))
	}
	outcome := rdma.StatusSuccess
	if c.Err() != nil {
		outcome = rdma.StatusFatal
	}
	return rdma.Completion{Context: c.context, Opcode: rdma.OpDisconnected, Status: outcome}
}

// Descriptor returns a descriptor that is readable while an armed connection has work, or
// progress.NoDescriptor if libdoca cannot tell.
func (q *completionQueue) Descriptor() int {
	if !q.device.wait {
		return progress.NoDescriptor
	}
	return q.poller.Descriptor()
}

// Arm asks all connections for notifications.
func (q *completionQueue) Arm() bool {
	if q.completions.Len() > 0 || q.connections.HasEnded() || q.connections.Notified() {
		return false
	}
	for _, c := range q.connections.Open {
		c.armed = true
		if c.hasUnsubmitted() || c.failure.Load() != nil || !c.rdma.Arm() {
			q.Disarm()
			return false
		}
	}
	if q.connections.Notified() {
		q.Disarm()
		return false
	}
	return true
}

// Disarm takes back what Arm has asked for.
func (q *completionQueue) Disarm() {
	for _, c := range q.connections.Open {
		if c.armed {
			c.armed = false
			c.rdma.Clear()
		}
	}
}

// Drain makes the descriptor unreadable. Notifications of other goroutines stay.
func (q *completionQueue) Drain() {
	q.poller.ClearWake()
	for _, c := range q.connections.Open {
		c.rdma.Clear()
	}
}

// Close releases the queue's descriptors. It does nothing if the queue is closed already.
func (q *completionQueue) Close() error {
	return q.connections.Close(func() {
		q.poller.Close()
		q.device.Uses.Release()
	})
}
