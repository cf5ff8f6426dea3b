// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/status"
)

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
	// carryOut carries out a flush of the user, until ctx ends.
	carryOut func(ctx context.Context, f *Flusher) error
	// isEverybody is set for the users who have no Flusher of their own. Nobody knows which of them
	// has learned of a loss, so none of them counts as having.
	isEverybody bool
	writes      *acknowledgedWrites // of the volume; nil if the user belongs to a queue
	// attempt is the user for whom a flush is attempted whose outcome may not reach the caller.
	attempt *Flusher
	seen    uint64 // losses that the user knows of; guarded by acknowledgedWrites.mu
}

// Flush is Volume.Flush, except that it reports each loss of writes once. Then the user can write
// again what it still has, and flush again.
func (f *Flusher) Flush() error { return f.FlushContext(context.Background()) }

// FlushContext is Flush, except that it also returns when ctx ends, with the cause of that. If the
// flush then fails with ErrWritesLost, the next one of the same user, or Close, does, too.
func (f *Flusher) FlushContext(ctx context.Context) error {
	if f.carryOut == nil {
		return status.Errorf(status.InvalidValue, "the Flusher is empty: use Volume.NewFlusher")
	}
	return f.carryOut(ctx, f)
}

// acknowledgedWrites tracks which completed writes a flush has made durable. Each queue counts its
// own writes without a lock; only flushes and changes of the session use acknowledgedWrites.
type acknowledgedWrites struct {
	onLoss   func(writes uint64) // is told how many writes may be lost; nil if nobody is
	queues   []*queueWrites
	mu       sync.Mutex
	losses   uint64 // restarts that may have lost writes of a queue
	reported uint64 // how many of the losses a flush has reported to some user
	lost     uint64 // writes that may be lost
}

// queueWrites is one queue's part of acknowledgedWrites.
type queueWrites struct {
	session      atomic.Pointer[sessionID] // that the queue uses
	acknowledged atomic.Uint64             // volatile writes completed so far
	durable      uint64                    // how many of them are; guarded by acknowledgedWrites.mu
}

// sessionID identifies a session, and the life of the target that it has reached.
type sessionID struct {
	number        uint64 // counts the volume's sessions, from 1
	writeVerifier uint64
}

// beginFlush is called before a flush of f is sent on the queue of w. It fills cover, which has
// room for all queues, with the writes that the flush will make durable, or fails with
// ErrWritesLost if the flush has to report a loss instead.
func (a *acknowledgedWrites) beginFlush(w *queueWrites, f *Flusher, cover []uint64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.recordLosses(w.session.Load())
	for i, other := range a.queues {
		cover[i] = other.acknowledged.Load()
	}
	if f.seen == a.losses {
		return nil
	}
	a.informLocked(f, a.losses)
	return ErrWritesLost
}

// join makes f a user who knows of all losses before a session.
func (a *acknowledgedWrites) join(f *Flusher, session *sessionID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.recordLosses(session)
	f.seen = a.losses
}

// recordLosses counts the losses of queues that have not switched to a session yet. The caller
// holds a.mu.
func (a *acknowledgedWrites) recordLosses(session *sessionID) {
	for _, w := range a.queues {
		if w.session.Load().number < session.number {
			a.recordLoss(w, session)
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
		a.queues[i].durable = max(a.queues[i].durable, n)
	}
}

// switchSession is called when a queue switches to the next session, after it has reported
// everything outstanding in the previous one.
func (a *acknowledgedWrites) switchSession(w *queueWrites, to *sessionID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.recordLoss(w, to)
	w.session.Store(to)
}

// recordLoss counts a loss if the target has restarted between the session of a queue and another
// one while the queue had writes that were not durable. The caller holds a.mu.
func (a *acknowledgedWrites) recordLoss(w *queueWrites, to *sessionID) {
	acknowledged, durable := w.acknowledged.Load(), w.durable
	if w.session.Load().writeVerifier == to.writeVerifier || acknowledged <= durable {
		return
	}
	w.durable = acknowledged
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
