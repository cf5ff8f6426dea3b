package iwarp

import "github.com/zc-relay/zc-relay/pkg/rdma"

// Poll implements rdma.CompletionQueue. While as many completions are ready
// as the caller takes, it does nothing else: a caller that is behind does not
// make more work for itself.
func (q *completionQueue) Poll(completions []rdma.Completion) int {
	if len(completions) == 0 || q.completions.len() < len(completions) {
		q.progress()
	}
	return q.collect(completions)
}

// progress drives all connections once.
func (q *completionQueue) progress() {
	q.giveWay()
	if q.alarm.Load() {
		q.answer()
	}
	q.transmitWaiting()
	if len(q.active) > 0 {
		q.pollReady()
		q.transmitWaiting() // answers to Reads that have just arrived
	}
}

// pollReady lets the kernel say which sockets have something to do. Looking at
// its list costs about half of what one socket does that is read in vain, so
// there is no number of connections for which trying them would be cheaper.
func (q *completionQueue) pollReady() {
	events := q.poller.ready(len(q.active) + 1)
	for i := range events {
		e := &events[i]
		if e.Fd == wakeSlot {
			q.poller.silence()
			continue
		}
		c := q.slots[e.Fd]
		if c != nil && writable(e) && c.transmitter.blocked {
			q.unblock(c)
			c.Flush()
		}
		if c != nil && readable(e) && c.phase == phaseOpen {
			c.receive()
		}
	}
}

func (q *completionQueue) transmitWaiting() {
	if len(q.waiting) == 0 {
		return
	}
	list := q.waiting
	q.waiting = q.spare[:0]
	for i, c := range list {
		list[i] = nil
		c.listed = false
		c.Flush()
	}
	q.spare = list[:0]
}

// collect hands out completions, and OpDisconnected after all others.
func (q *completionQueue) collect(completions []rdma.Completion) int {
	n := q.completions.collect(completions)
	for n < len(completions) && len(q.ended) > 0 {
		completions[n] = q.detach()
		n++
	}
	return n
}

// detach lets go of the connection that ended last.
func (q *completionQueue) detach() rdma.Completion {
	last := len(q.ended) - 1
	c := q.ended[last]
	q.ended[last] = nil
	q.ended = q.ended[:last]
	c.phase = phaseDetached
	c.domain.uses.release()
	q.attached.Add(-1)
	outcome := rdma.StatusSuccess
	if c.Err() != nil {
		outcome = rdma.StatusFatal
	}
	return rdma.Completion{Context: c.context, Opcode: rdma.OpDisconnected, Status: outcome}
}

// Descriptor implements progress.Waiter.
func (q *completionQueue) Descriptor() int { return q.poller.descriptor }

// Arm implements progress.Waiter. Nothing has to be announced: the descriptor
// is readable whenever a socket is, or the wake-up descriptor.
func (q *completionQueue) Arm() bool {
	if q.completions.len() > 0 || len(q.ended) > 0 || len(q.waiting) > 0 || q.alarm.Load() {
		return false
	}
	events := q.poller.ready(1)
	if len(events) == 1 && events[0].Fd == wakeSlot {
		// Maybe the late half of a wake-up that Poll has already answered.
		q.poller.silence()
	}
	return len(events) == 0
}

// Disarm implements progress.Waiter.
func (q *completionQueue) Disarm() {}

// Drain implements progress.Waiter. What made the descriptor readable is
// consumed by Poll, but for a wake-up that was answered already.
func (q *completionQueue) Drain() { q.poller.silence() }
