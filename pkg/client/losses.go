package client

import (
	"context"
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Reconnections holds counters of a volume's lost sessions and their consequences.
type Reconnections struct {
	// Count is how often the volume was reopened.
	Count int
	// Outage is the total time without a session, and LongestOutage the longest single outage. An
	// outage begins when the volume learns of the loss; requests may have waited before.
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
// not been flushed, unless the write verifier shows that they are not lost. They may be lost. Each
// user of the volume gets the error once for each loss, whoever has written: see Flusher. The flush
// is not carried out. ErrWritesLost matches status.IOFailed.
var ErrWritesLost = status.Errorf(status.IOFailed,
	"the target has restarted: completed writes that were not flushed may be lost")

// Flusher is one user of a volume. A flush covers the writes of all users, but a loss of writes
// concerns each of them: a user whose writes are lost must not take the success of a flush for an
// answer because another user's flush has failed before. So each user has a Flusher of its own. Any
// goroutine may call its methods.
type Flusher struct {
	volume *Volume
	// isEverybody is set for the users who have no Flusher of their own. Nobody knows which of them
	// has learned of a loss, so none of them counts as having.
	isEverybody bool
	// attempt is the user for whom a flush is attempted whose outcome may not reach the caller.
	attempt *Flusher
	seen    uint64 // losses that the user knows of; guarded by acknowledgedWrites.mu
}

// NewFlusher returns a user who knows of all losses so far: one who begins to write now.
func (v *Volume) NewFlusher() *Flusher {
	v.callers.RLock()
	defer v.callers.RUnlock()
	f := &Flusher{volume: v}
	v.writes.join(f, v.queues, v.session.Load())
	return f
}

// Flush is Volume.Flush, except that it reports each loss of writes once. Then the user can write
// again what it still has, and flush again.
func (f *Flusher) Flush() error { return f.volume.flush(nil, f) }

// FlushContext is Flush, except that it also returns when ctx ends, with the cause of that. If the
// flush then fails with ErrWritesLost, the next one of the same user, or Close, does, too.
func (f *Flusher) FlushContext(ctx context.Context) error {
	_, err := during(ctx, func(c *call) (int, error) { return 0, f.volume.flush(c, f) })
	return err
}

// flush carries out a flush of a user.
func (v *Volume) flush(c *call, f *Flusher) error {
	attempt := &Flusher{attempt: f, seen: v.writes.lossesKnownTo(f)}
	err := v.submitAndWait(c, &Request{Type: iomsg.Flush, Flusher: attempt})
	if c.end(0, err) == nil {
		v.writes.inform(f, attempt)
	}
	return err
}

// acknowledgedWrites tracks which completed writes a flush has made durable. Each queue counts its
// own writes without a lock; only flushes and changes of the session use acknowledgedWrites.
type acknowledgedWrites struct {
	onLoss   func(writes uint64) // is told how many writes may be lost; nil if nobody is
	mu       sync.Mutex
	durable  []uint64 // for each queue, how many of its writes are durable
	losses   uint64   // restarts that may have lost writes of a queue
	reported uint64   // how many of the losses a flush has reported to some user
	lost     uint64   // writes that may be lost
}

// beginFlush is called before a flush of f is sent on q. It fills cover with the writes that the
// flush will make durable, or fails with ErrWritesLost if the flush has to report a loss instead.
func (a *acknowledgedWrites) beginFlush(q *Queue, f *Flusher, queues []*Queue,
	cover []uint64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.recordLosses(queues, q.session.Load())
	for i, other := range queues {
		cover[i] = other.acknowledged.Load()
	}
	if f.seen == a.losses {
		return nil
	}
	a.informLocked(f, a.losses)
	return ErrWritesLost
}

// join makes f a user who knows of all losses before a session.
func (a *acknowledgedWrites) join(f *Flusher, queues []*Queue, session *session) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.recordLosses(queues, session)
	f.seen = a.losses
}

// recordLosses counts the losses of queues that have not switched to a session yet. The caller
// holds a.mu.
func (a *acknowledgedWrites) recordLosses(queues []*Queue, session *session) {
	for _, q := range queues {
		if theirs := q.session.Load(); theirs.number < session.number {
			a.recordLoss(q, theirs, session)
		}
	}
}

// lossesKnownTo returns how many losses a user knows of.
func (a *acknowledgedWrites) lossesKnownTo(f *Flusher) uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return f.seen
}

// inform is called when a user has received the outcome of an attempt.
func (a *acknowledgedWrites) inform(f, attempt *Flusher) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.informLocked(f, attempt.seen)
}

// informLocked is called when a user gets to know of losses. The caller holds a.mu.
func (a *acknowledgedWrites) informLocked(f *Flusher, losses uint64) {
	if losses <= f.seen {
		return
	}
	if f.attempt == nil {
		a.reported = max(a.reported, losses)
	}
	if !f.isEverybody {
		f.seen = losses
	}
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
