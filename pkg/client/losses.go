package client

import (
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Reconnections holds counters of a volume's lost sessions and their consequences.
type Reconnections struct {
	// Count is how often the volume was reopened.
	Count int
	// Outage is the total time without a session, and LongestOutage the longest single outage.
	Outage        time.Duration
	LongestOutage time.Duration
	// LostWrites counts writes that had completed but not been flushed when the target restarted:
	// they may be lost. A flush that fails with ErrWritesLost reports them.
	LostWrites uint64
}

// history accumulates Reconnections; Volume.mu guards it.
type history struct {
	past  Reconnections
	since time.Time // start of the current outage; zero while there is none
}

// Reconnections returns how often the volume was reopened and how long it was unavailable. It
// includes an outage that is still in progress.
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

// add counts one outage.
func (r *Reconnections) add(outage time.Duration) {
	r.Outage += outage
	r.LongestOutage = max(r.LongestOutage, outage)
}

// beginOutage starts the clock of an outage.
func (v *Volume) beginOutage() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.history.since = time.Now()
}

// endOutage counts a reopening and returns the length of the outage.
func (v *Volume) endOutage() (outage time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	outage = time.Since(v.history.since)
	v.history.since = time.Time{}
	v.history.past.Count++
	v.history.past.add(outage)
	return outage
}

// ErrWritesLost is the error of a flush after the target has restarted while completed writes had
// not been flushed, unless the write verifier shows that they are not lost. They may be lost. The
// first flush submitted to each queue after the restart fails with ErrWritesLost and is not carried
// out. It matches status.IOFailed.
var ErrWritesLost = status.Errorf(status.IOFailed,
	"the target has restarted: completed writes that were not flushed may be lost")

// acknowledgedWrites tracks which completed writes a flush has made durable. Each queue counts its
// own writes without a lock; only flushes and changes of the session use acknowledgedWrites.
type acknowledgedWrites struct {
	onLoss   func(writes uint64) // is told how many writes may be lost; nil if nobody is
	mu       sync.Mutex
	durable  []uint64 // for each queue, how many of its writes are durable
	losses   uint64   // restarts that may have lost writes of a queue
	reported uint64   // how many of the losses a flush has reported
	lost     uint64   // writes that may be lost
}

// beginFlush is called before a flush is sent on q. It fills cover with the writes that the flush
// will make durable, or fails with ErrWritesLost if the flush has to report a loss instead.
func (a *acknowledgedWrites) beginFlush(q *Queue, queues []*Queue, cover []uint64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	session := q.session.Load()
	for i, other := range queues {
		if theirs := other.session.Load(); theirs.number < session.number {
			a.recordLoss(other, theirs, session) // other has not switched yet
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

// switchSession is called when a queue switches to the next session, after it has reported
// everything outstanding in the previous one.
func (a *acknowledgedWrites) switchSession(q *Queue, from, to *session) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.recordLoss(q, from, to)
}

// recordLoss counts a loss if the target has restarted between two sessions while q had writes that
// were not durable. The caller holds a.mu.
func (a *acknowledgedWrites) recordLoss(q *Queue, from, to *session) {
	acknowledged, durable := q.acknowledged.Load(), a.durable[q.index]
	if from.info.WriteVerifier == to.info.WriteVerifier || acknowledged <= durable {
		return
	}
	a.durable[q.index] = acknowledged
	a.losses++
	a.lost += acknowledged - durable
	if a.onLoss != nil {
		a.onLoss(acknowledged - durable)
	}
}

// reportAgain is called when nobody has received the ErrWritesLost that a flush on q has failed
// with.
func (a *acknowledgedWrites) reportAgain(q *Queue) {
	a.mu.Lock()
	defer a.mu.Unlock()
	q.lossesSeen--
	a.reported--
}

func (a *acknowledgedWrites) lostCount() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lost
}

// unreported returns ErrWritesLost if no flush has reported the latest loss.
func (a *acknowledgedWrites) unreported() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.losses == a.reported {
		return nil
	}
	return ErrWritesLost
}
