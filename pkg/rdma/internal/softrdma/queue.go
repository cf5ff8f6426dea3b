// SPDX-License-Identifier: Apache-2.0

package softrdma

import (
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/workqueue"
)

// Queue is the part of a completion queue that is the same however its connections move data. It
// belongs to the thread that polls the queue, except what connectionSet excludes.
type Queue[C any] struct {
	Completions workqueue.Completions
	Connections connectionSet[Attached[C]]
	Fairness    Fairness
	// scheduled holds the connections that may have something to transmit. It alternates with spare
	// while it is processed.
	scheduled, spare []*Attached[C]
	release          func(*C)
}

// NewQueue returns a queue that collects completions. It calls wake to end the sleep of its thread,
// from any goroutine, and release for a connection whose OpDisconnected is being polled.
func NewQueue[C any](
	completions workqueue.Completions, wake func(), release func(*C),
) Queue[C] {
	return Queue[C]{
		Completions: completions, Connections: connectionSet[Attached[C]]{Wake: wake},
		release: release,
	}
}

// IsShort reports whether the connections are to be driven before completions are filled. Otherwise
// enough completions are waiting already, and a caller that has fallen behind must not create more
// work for itself.
func (q *Queue[C]) IsShort(completions []rdma.Completion) bool {
	return len(completions) == 0 || q.Completions.Len() < len(completions)
}

// CollectEnded fills completions with the OpDisconnected of connections that have ended, and
// returns their number. All other completions have been collected before.
func (q *Queue[C]) CollectEnded(completions []rdma.Completion) int {
	n := 0
	for ; n < len(completions) && q.Connections.HasEnded(); n++ {
		c := q.Connections.Detach()
		c.Phase = PhaseDetached
		q.release(c.Self)
		outcome := rdma.StatusSuccess
		if c.Err() != nil {
			outcome = rdma.StatusFatal
		}
		completions[n] = rdma.Completion{
			Context: c.Context, Opcode: rdma.OpDisconnected, Status: outcome,
		}
	}
	return n
}

// HasPending reports whether a poll would find something without a look at the connections.
func (q *Queue[C]) HasPending() bool {
	return q.Completions.Len() > 0 || len(q.scheduled) > 0 || q.Connections.HasEnded() ||
		q.Connections.Notified()
}

// Activate makes the connections that have arrived open ones, and returns them.
func (q *Queue[C]) Activate() []*Attached[C] {
	arrived := q.Connections.Arrived()
	for _, c := range arrived {
		c.Slot = q.Connections.Activate(c)
	}
	return arrived
}

// HasScheduled reports whether a connection is to have a turn to transmit.
func (q *Queue[C]) HasScheduled() bool { return len(q.scheduled) > 0 }

// TakeScheduled returns the connections that are to have a turn to transmit, in which a connection
// may schedule itself again for the next call. The result is valid until then.
func (q *Queue[C]) TakeScheduled() []*Attached[C] {
	clear(q.spare) // it must not keep connections that have ended
	list := q.scheduled
	SortByWait(&q.Fairness, Transmitting, list, SharingOf[C])
	q.scheduled, q.spare = q.spare[:0], list
	for _, c := range list {
		c.scheduled = false
	}
	return list
}

// Attached is the part of a connection that its completion queue knows. It belongs to the thread of
// the queue, except Parameters, Err, and Notify, which any goroutine may call.
type Attached[C any] struct {
	Self      *C
	Context   uint64          // of the caller
	Agreed    rdma.Parameters // constant once the connection is established
	Phase     Phase
	Slot      int32 // identifies the connection to the queue's poller
	Sharing   Member
	scheduled bool
	queue     *Queue[C]
	failure   atomic.Pointer[error]
}

// Phase is a step in the life of a connection.
type Phase uint8

// A connection that has ended needs no memory any more.
const (
	PhaseOpen     Phase = iota
	PhaseEnded          // OpDisconnected has not been polled
	PhaseDetached       // OpDisconnected has been polled
)

// Open makes c the part of self that queue knows.
func (c *Attached[C]) Open(self *C, queue *Queue[C], config *rdma.ConnectionConfig) {
	c.Self, c.queue, c.Context, c.Slot = self, queue, config.Context, Unassigned
}

// Attach puts the established connection into the queue's inbox.
func (c *Attached[C]) Attach() error { return c.queue.Connections.Attach(c) }

// HasArrived reports whether the connection is still in the queue's inbox.
func (c *Attached[C]) HasArrived() bool { return c.Slot == Unassigned }

// Schedule gives the connection a turn to transmit in the current or next Poll.
func (c *Attached[C]) Schedule() {
	if !c.scheduled {
		c.scheduled = true
		c.queue.scheduled = append(c.queue.scheduled, c)
	}
}

// Notify makes the queue's thread look for what other threads have done to its connections.
func (c *Attached[C]) Notify() { c.queue.Connections.Notify() }

// SetErr notes why the connection ends; nil means an orderly end.
func (c *Attached[C]) SetErr(cause error) {
	if cause != nil {
		c.failure.Store(&cause)
	}
}

// Err returns why the connection has ended. It is nil before, and after an orderly end.
func (c *Attached[C]) Err() error {
	if err := c.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// Parameters returns what both sides agreed on.
func (c *Attached[C]) Parameters() rdma.Parameters { return c.Agreed }

// SharingOf returns a connection's part in its queue's fairness.
func SharingOf[C any](c *Attached[C]) *Member { return &c.Sharing }
