package client

import (
	"errors"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// tellsEnd reports whether an answer with code means that no further request
// of the session will succeed.
func tellsEnd(code status.Code) bool {
	switch code {
	case status.ConnectionReset, status.Shutdown, status.TimeOut:
		return true
	}
	return false
}

// WriteVerifier is that of the session that the queue works in: it changes
// whenever the target has restarted. It is for the queue's thread.
func (q *Queue) WriteVerifier() uint64 { return q.lane.session.info.WriteVerifier }

// end fails everything outstanding.
func (q *Queue) end() {
	q.ended = true
	for i := range q.slots {
		if q.slots[i].outstanding {
			q.slots[i].outstanding = false
			q.failed = append(q.failed, uint32(i))
		}
	}
	if engine := q.engine.Load(); engine != nil && q.volume.reopens() {
		// Its doorbell would not stop ringing.
		engine.RemoveWaiter(q.lane.consumer)
	}
}

// pollEnded reports what has failed, and then goes over to the next session
// if there is one.
func (q *Queue) pollEnded(results []Result) int {
	n := min(len(results), len(q.failed))
	if n == 0 {
		q.goOver()
		return 0
	}
	code := q.lossCode()
	for i := range n {
		index := q.failed[len(q.failed)-1-i]
		results[i] = Result{Tag: q.slots[index].tag, Code: code}
		q.release(index)
	}
	q.failed = q.failed[:len(q.failed)-n]
	return n
}

// lossCode is how requests fail that the end of a session has left open.
func (q *Queue) lossCode() status.Code {
	code := status.CodeOf(q.lane.session.endError())
	if q.volume.reopens() && !tellsEnd(code) {
		return status.ConnectionReset
	}
	return code
}

// resume is called for a request that the lane cannot take. It succeeds if
// there is another lane.
func (q *Queue) resume() error {
	switch {
	case q.stopSent:
		return q.lane.session.endError()
	case len(q.failed) > 0:
		return status.Again
	case q.ended && q.goOver():
		return nil
	}
	if err := q.volume.Err(); err != nil {
		return err
	}
	if !q.volume.reopens() {
		return q.lane.session.endError()
	}
	return ErrReopening
}

// offer gives the queue the lane to go over to, in place of one that it has
// not taken.
func (q *Queue) offer(next *lane) {
	if unused := q.next.Swap(next); unused != nil {
		if err := unused.close(); err != nil {
			q.volume.config.Logger.Sugar().Warnf("release a lane of a lost session: %v", err)
		}
	}
	q.wake()
}

// wake makes the engine that the queue is attached to poll it.
func (q *Queue) wake() {
	if engine := q.engine.Load(); engine != nil {
		engine.Wake()
	}
}

// goOver takes the lane in the next session, if there is one, into use.
// Everything outstanding in the former has been reported.
func (q *Queue) goOver() bool {
	next := q.next.Swap(nil)
	if next == nil {
		return false
	}
	former := q.lane
	q.volume.writes.goingOver(q, former.session, next.session)
	q.lane, q.ended, q.ending, q.unflushed = next, false, false, false
	q.session.Store(next.session)
	if err := former.close(); err != nil {
		q.volume.config.Logger.Sugar().Warnf("release a lane of a lost session: %v", err)
	}
	if engine := q.engine.Load(); engine != nil {
		if err := engine.AddWaiter(next.consumer); err != nil {
			next.session.fail(err) // Poll finds it ended
		}
	}
	return true
}

// beginFlush prepares a slot for a flush, which has to tell of lost writes
// instead if there are any.
func (q *Queue) beginFlush(s *slot) error {
	if s.cover == nil {
		s.cover = make([]uint64, len(q.volume.queues))
	}
	return q.volume.writes.flushing(q, q.volume.queues, s.cover)
}

// undelivered calls each for every request whose result has not been polled.
func (q *Queue) undelivered(each func(tag uint64)) {
	for i := range q.slots {
		if q.slots[i].outstanding {
			each(q.slots[i].tag)
		}
	}
	for _, index := range q.failed {
		each(q.slots[index].tag)
	}
}

func (q *Queue) close() error {
	err := q.lane.close()
	if next := q.next.Swap(nil); next != nil {
		err = errors.Join(err, next.close())
	}
	return err
}
