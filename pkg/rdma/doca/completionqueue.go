// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package doca

import (
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/epoll"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/softrdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/workqueue"
)

// completionQueue drives its connections, each of which has a progress engine of its own, and
// collects their completions.
type completionQueue struct {
	softrdma.Queue[connection]
	device *device
	poller *epoll.Poller
}

func newCompletionQueue(d *device, capacity int) (*completionQueue, error) {
	p, err := epoll.New()
	if err != nil {
		return nil, err
	}
	q := &completionQueue{device: d, poller: p}
	q.Queue = softrdma.NewQueue(workqueue.NewCompletions(capacity), p.Wake, func(c *connection) {
		if err := c.discard(); err != nil {
			d.log.Error("an RDMA connection cannot be released", zap.Error(err))
		}
	})
	return q, nil
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

func (q *completionQueue) progress() {
	if q.Connections.Notified() {
		q.poller.ClearWake()
		q.Connections.Acknowledge()
		q.processInbox()
	}
	// Backwards, because a turn may remove its connection.
	for i := len(q.Connections.Open) - 1; i >= 0; i-- {
		q.Connections.Open[i].Self.turn()
	}
}

// processInbox activates the connections in the inbox.
func (q *completionQueue) processInbox() {
	for _, arrived := range q.Activate() {
		c := arrived.Self
		if descriptor := c.rdma.Descriptor(); descriptor != progress.NoDescriptor {
			if err := q.poller.Add(descriptor, c.Slot); err != nil {
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
	q.Connections.End(&c.Attached, c.Slot)
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
	if q.HasPending() {
		return false
	}
	for _, open := range q.Connections.Open {
		c := open.Self
		c.armed = true
		if c.hasUnsubmitted() || c.failure.Load() != nil || !c.rdma.Arm() {
			q.Disarm()
			return false
		}
	}
	if q.Connections.Notified() {
		q.Disarm()
		return false
	}
	return true
}

// Disarm takes back what Arm has asked for.
func (q *completionQueue) Disarm() {
	for _, open := range q.Connections.Open {
		c := open.Self
		if c.armed {
			c.armed = false
			c.rdma.Clear()
		}
	}
}

// Clear makes the descriptor unreadable. Notifications of other goroutines stay.
func (q *completionQueue) Clear() {
	q.poller.ClearWake()
	for _, open := range q.Connections.Open {
		c := open.Self
		c.rdma.Clear()
	}
}

// Close releases the queue's descriptors. It does nothing if the queue is closed already.
func (q *completionQueue) Close() error {
	return q.Connections.Close(func() {
		q.poller.Close()
		q.device.Uses.Release()
	})
}
