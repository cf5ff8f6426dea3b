//go:build verbs

package verbs

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// Poll implements rdma.CompletionQueue. While as many completions are ready
// as the caller takes, it does nothing else.
func (q *completionQueue) Poll(completions []rdma.Completion) int {
	if len(completions) == 0 || q.completions.len() < len(completions) {
		q.progress()
	}
	return q.collect(completions)
}

// progress gives the device what is posted and takes what it has completed.
func (q *completionQueue) progress() {
	if q.alarm.Load() {
		q.answer()
	}
	q.submitWaiting()
	fresh := q.first == q.last
	if fresh {
		q.fetch()
	}
	for ; q.first < q.last; q.first++ {
		q.dispatch(q.first)
	}
	// Only if fewer than were asked for came just now, the device's queue is
	// empty: what Arm found does not tell.
	if !fresh || q.last == len(q.work) {
		return
	}
	if q.owed.Load() {
		q.settle()
	}
	for len(q.ending) > 0 {
		q.ending[len(q.ending)-1].finish()
	}
}

// fetch polls the device's queue into work.
func (q *completionQueue) fetch() {
	n, err := q.cq.Poll(q.work[:])
	if err != nil {
		q.fail(err)
	}
	q.first, q.last = 0, n
}

// fail ends all connections of a completion queue that does not work.
func (q *completionQueue) fail(err error) {
	q.device.log.Error("completion queue", zap.Error(err))
	for _, c := range *q.slots.Load() {
		if c != nil {
			c.interrupt(fmt.Errorf("completion queue: %w", err))
		}
	}
}

// dispatch gives a completion to its connection.
func (q *completionQueue) dispatch(i int) {
	w := &q.work[i]
	token, index, receive := splitWorkID(w.WorkID)
	c := q.find(token)
	if c == nil {
		return // left over from a connection that is gone
	}
	c.adopt()
	if c.phase == phaseEnded {
		return // flushed already
	}
	c.record(index, receive, w)
	if c.phase != phaseConnecting {
		c.deliver()
	}
}

func (q *completionQueue) submitWaiting() {
	if len(q.waiting) == 0 {
		return
	}
	list := q.waiting
	q.waiting = q.spare[:0]
	for i, c := range list {
		list[i] = nil
		c.listed = false
		c.submit()
	}
	q.spare = list[:0]
}

// collect hands out completions, and OpDisconnected after all others.
func (q *completionQueue) collect(completions []rdma.Completion) int {
	n := q.completions.take(completions)
	for n < len(completions) && len(q.ended) > 0 {
		completions[n] = q.unlist()
		n++
	}
	return n
}

// Descriptor implements progress.Waiter.
func (q *completionQueue) Descriptor() int { return q.poller.descriptor }

// Arm implements progress.Waiter. A notification is requested first, then the
// device's queue is looked at once more: what was added before the request
// would not be notified of.
func (q *completionQueue) Arm() bool {
	if q.completions.len() > 0 || len(q.ended) > 0 || len(q.ending) > 0 || q.unsubmitted() || q.alarm.Load() {
		return false
	}
	// The late half of a wake-up that Poll has already answered.
	q.poller.silence()
	if q.requested && q.cq.TakeNotifications() {
		q.requested = false
	}
	if !q.requested {
		if err := q.cq.RequestNotification(); err != nil {
			q.fail(err)
			return false
		}
		q.requested = true
	}
	if q.first == q.last {
		q.fetch()
	}
	return q.first == q.last && !q.alarm.Load()
}

// unsubmitted tells whether there is a request that the device does not have.
// Connections stay listed after a Flush, until the next Poll.
func (q *completionQueue) unsubmitted() bool {
	for _, c := range q.waiting {
		if len(c.posted) > 0 {
			return true
		}
	}
	return false
}

// Disarm implements progress.Waiter. A notification that is still requested
// is used by the next Arm.
func (q *completionQueue) Disarm() {}

// Drain implements progress.Waiter.
func (q *completionQueue) Drain() {
	q.poller.silence()
	if q.cq.TakeNotifications() {
		q.requested = false
	}
}
