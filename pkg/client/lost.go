// SPDX-License-Identifier: Apache-2.0

package client

import "github.com/zc-relay/zc-relay/pkg/status"

// collectLost moves every outstanding request to lost, for reportLost: first those that change the
// volume.
func (q *Queue) collectLost() {
	q.state, q.unsent = queueLost, q.unsent[:0]
	for _, changes := range []bool{true, false} {
		for i := range q.slots {
			if s := &q.slots[i]; s.outstanding && s.changes() == changes {
				s.outstanding = false
				q.lost = append(q.lost, uint32(i))
			}
		}
		if changes {
			q.lostChanges = len(q.lost)
		}
	}
	if engine := q.engine.Load(); engine != nil {
		// The doorbell of a consumer that has ended never stops ringing.
		q.pair.detach(engine)
	}
}

// reportLost reports the requests that were lost with the session, as failed. When all have been
// reported it switches to the next session, if there is one.
func (q *Queue) reportLost(results []Result) int {
	if len(q.lost) == 0 {
		q.switchSession()
		return 0
	}
	evidence := q.session.memory.evidence.Load()
	if evidence == onLoan {
		return 0 // settle wakes the queue's thread
	}
	code := status.CodeOf(q.session.endError())
	if q.life.canReconnect &&
		(!isSessionEnd(code) || code == status.InUse && !q.session.isPreempted()) {
		code = status.ConnectionReset // one of the codes that Poll documents
	}
	withheld := 0
	if evidence == returned {
		withheld = q.lostChanges
	}
	n := 0
	for ; len(q.lost) > withheld && n < len(results); n++ {
		last := len(q.lost) - 1
		index := q.lost[last]
		q.lost = q.lost[:last]
		s := &q.slots[index]
		results[n] = Result{Tag: s.tag, Code: code, Quarantined: evidence == quarantined}
		if !s.isSegment {
			q.complete(index, code, uint64(s.length))
		} else if !q.completeSegment(index, &results[n]) {
			n-- // the result is that of a later one
		}
	}
	q.publishStats()
	return n
}

// recoverSession makes a queue that accepts no requests usable again by switching to the next
// session. It returns nil if it has switched, or the reason why requests cannot be submitted.
func (q *Queue) recoverSession() error {
	switch {
	case q.state >= queueStopping:
		return q.session.endError()
	case len(q.lost) > 0:
		return status.Again
	case q.state == queueLost && q.switchSession():
		return nil
	}
	if err := q.life.err(); err != nil {
		return err
	}
	if !q.life.canReconnect {
		return q.session.endError()
	}
	return ErrReopening
}

// switchSession switches to the next session and reports whether there was one. All requests of the
// current session must have been reported.
func (q *Queue) switchSession() bool {
	next := q.next.Swap(nil)
	if next == nil {
		return false
	}
	former := q.pair
	q.writes.switchSession(&q.written, &next.id)
	q.session, q.pair = next, next.pairs[q.index]
	q.state, q.unrung = queueAccepting, false
	q.memoryChanged = q.memory != next.memory.dataMemory || q.former != nil
	q.closePair(former)
	if engine := q.engine.Load(); engine != nil {
		if err := q.pair.attach(engine); err != nil {
			next.fail(err) // Poll will find that it has ended
		}
		// The thread may have called Submit in vain before this Poll, and sleep next.
		engine.Wake()
	}
	return true
}

// setNext sets the session to switch to. It replaces one that the queue has not switched to yet.
// Any goroutine may call it.
func (q *Queue) setNext(next *session) {
	if unused := q.next.Swap(next); unused != nil {
		q.closePair(unused.pairs[q.index])
	}
	q.wake()
}

// wake makes the engine that the queue is attached to, if any, poll it.
func (q *Queue) wake() {
	if engine := q.engine.Load(); engine != nil {
		engine.Wake()
	}
}

// closePair closes the pair of a lost session.
func (q *Queue) closePair(lost *comchPair) {
	if err := lost.close(); err != nil {
		q.terms.config.Logger.Sugar().
			Warnf("close queue %d of a lost session: %v", q.index, err)
	}
}
