package client

import (
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Reconnections is what became of the sessions of a volume.
type Reconnections struct {
	// Count is how often the volume was reopened.
	Count int
	// Outage is how long there was no session, all in all, and
	// LongestOutage the longest of these times.
	Outage        time.Duration
	LongestOutage time.Duration
	// LostWrites is how many writes had been acknowledged, and not flushed,
	// when the target restarted: they may be lost. A flush that fails with
	// ErrWritesLost tells of them.
	LostWrites uint64
}

// history is what has happened so far.
type history struct {
	past  Reconnections
	since time.Time // of the outage that goes on
}

// Reconnections tells how often the volume was reopened, and for how long it
// was not there. An outage that goes on counts up to now.
func (v *Volume) Reconnections() Reconnections {
	v.mu.Lock()
	r := v.history.past
	if since := v.history.since; !since.IsZero() {
		r.add(time.Since(since))
	}
	v.mu.Unlock()
	r.LostWrites = v.writes.lostCount()
	return r
}

func (r *Reconnections) add(outage time.Duration) {
	r.Outage += outage
	r.LongestOutage = max(r.LongestOutage, outage)
}

func (v *Volume) beginOutage() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.history.since = time.Now()
}

func (v *Volume) endOutage() (outage time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	outage = time.Since(v.history.since)
	v.history.since = time.Time{}
	v.history.past.Count++
	v.history.past.add(outage)
	return outage
}

// ErrWritesLost is why a flush fails after the target has restarted, which its
// write verifier shows, while there were writes that it had acknowledged and
// not flushed: nobody knows whether they are lost. The first flush that is
// submitted to each queue afterwards fails with it, and is not carried out.
// It matches status.IOFailed.
var ErrWritesLost = status.Errorf(status.IOFailed,
	"the target has restarted: writes that were acknowledged before, and not flushed, may be lost")

// acknowledgedWrites knows which of them a flush has made durable. Each queue
// counts its own, without a lock; what is here is touched only by flushes and
// by changes of the session.
type acknowledgedWrites struct {
	mu       sync.Mutex
	durable  []uint64 // how many of each queue's writes
	losses   uint64   // times that writes were lost
	reported uint64   // of them, by flushes
	lost     uint64   // writes
}

// beginFlush is called when a flush is about to be sent on q. It fails if the
// flush must tell of a loss instead. cover becomes what the flush makes
// durable.
func (a *acknowledgedWrites) beginFlush(q *Queue, queues []*Queue, cover []uint64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	session := q.session.Load()
	for i, other := range queues {
		if theirs := other.session.Load(); theirs.number < session.number {
			a.recordLoss(other, theirs, session) // it has not gone over yet
		}
		cover[i] = other.acknowledged.Load()
	}
	if q.lossesSeen == a.losses {
		return nil
	}
	q.lossesSeen, a.reported = a.losses, a.losses
	return ErrWritesLost
}

// completeFlush is called when a flush has succeeded.
func (a *acknowledgedWrites) completeFlush(cover []uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, n := range cover {
		a.durable[i] = max(a.durable[i], n)
	}
}

// switchSession is called when a queue, all of whose requests in a session have
// been answered, goes over to the next.
func (a *acknowledgedWrites) switchSession(q *Queue, from, to *session) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.recordLoss(q, from, to)
}

// recordLoss notes a loss if the target has restarted between two sessions while
// writes of q were not durable.
func (a *acknowledgedWrites) recordLoss(q *Queue, from, to *session) {
	acknowledged, durable := q.acknowledged.Load(), a.durable[q.index]
	if from.info.WriteVerifier == to.info.WriteVerifier || acknowledged <= durable {
		return
	}
	a.durable[q.index] = acknowledged
	a.losses++
	a.lost += acknowledged - durable
}

func (a *acknowledgedWrites) lostCount() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lost
}

// unreported is ErrWritesLost if there was a loss that no flush has told of.
func (a *acknowledgedWrites) unreported() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.losses == a.reported {
		return nil
	}
	return ErrWritesLost
}
