// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// life is the state of a volume, and its current session. The sessionKeeper serves, loses, and
// fails; any goroutine may close and ask.
//
//	opening    Open has no session yet, and the program has no volume
//	serving    a session has begun, and its end has not been noticed
//	reopening  the session was lost; queues report each outstanding request once,
//	           as failed, and accept no new ones
//	failed     there will be no further session
//	closed     Close or Abort has been called, or Open has failed
//
// The table shows the effect of each event, and the outcome of each question. An arrow precedes the
// new state; a dash means that the event cannot occur. A test reads the table and tries each cell.
//
//	                     opening    serving      reopening    failed      closed
//	serve                → serving  –            → serving    –           stays¹
//	lose                 –          → reopening  –            –           stays
//	fail                 –          → failed     → failed     –           stays¹
//	close                → closed   → closed     → closed     → closed    stays
//	awaitSession, later  –          waits        waits        reason      SHUTDOWN³
//	awaitSession, same   –          returns      returns      reason      SHUTDOWN³
//	err                  –          nil          nil          reason      SHUTDOWN²
//	err, no Reconnect    –          session's    –            reason      session's²
//	done                 open       open         open         closed      closed
//
//	¹ Close ends the session, or returns the reason.
//	² ErrClosed. A volume that has failed before keeps its reason.
//	³ ErrClosed.
type life struct {
	background   *background
	canReconnect bool
	session      atomic.Pointer[session] // the current one, or the last one
	done         chan struct{}           // closed when there will be no further session

	mu      sync.Mutex // guards the fields below
	state   volumeState
	failure error         // why there will be no further session
	wasLost bool          // the last session had ended when a volume without Reconnect was closed
	changed chan struct{} // closed and replaced when the state changes
	past    Reconnections
	since   time.Time // start of the current outage; zero while there is none
}

// volumeState is the stage of a volume's life.
type volumeState uint8

const (
	volumeOpening volumeState = iota
	volumeServing
	volumeReopening
	volumeFailed
	volumeClosed
)

func newLife(b *background, canReconnect bool) *life {
	return &life{background: b, canReconnect: canReconnect, done: make(chan struct{}),
		changed: make(chan struct{})}
}

// serve is called when the current session can be used: it ends the outage, if there is one.
func (l *life) serve() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.since.IsZero() {
		l.past.add(time.Since(l.since))
		l.past.Count++
		l.since = time.Time{}
	}
	l.enter(volumeServing)
}

// lose is called when the session has ended, and another one may follow: it begins an outage.
func (l *life) lose() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != volumeClosed {
		l.since = time.Now()
	}
	l.enter(volumeReopening)
}

// fail is called when there will be no further session, for a reason.
func (l *life) fail(reason error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failure = reason
	l.enter(volumeFailed)
}

// close ends what the volume does in the background, and reports whether it is the first call.
func (l *life) close() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := l.state != volumeClosed
	if first && !l.canReconnect && l.state != volumeOpening {
		l.wasLost = l.session.Load().Err() != nil
	}
	l.enter(volumeClosed)
	l.background.cancel()
	return first
}

// enter changes the state, unless the volume is closed, and wakes all callers of awaitSession. The
// caller holds mu.
func (l *life) enter(next volumeState) {
	if l.state == volumeClosed {
		return
	}
	if l.state < volumeFailed && next >= volumeFailed {
		close(l.done)
	}
	l.state = next
	close(l.changed)
	l.changed = make(chan struct{})
}

// err returns why the volume can no longer be used. It returns nil while the volume works or is
// being reopened.
func (l *life) err() error {
	l.mu.Lock()
	state, failure, wasLost := l.state, l.failure, l.wasLost
	l.mu.Unlock()
	if failure == nil && wasLost {
		failure = l.session.Load().Err() // the relay's reason may have arrived since
	}
	switch {
	case state == volumeClosed && failure != nil:
		return fmt.Errorf("%w (%w)", failure, ErrClosed)
	case state == volumeClosed:
		return ErrClosed
	case l.canReconnect:
		return failure
	}
	return l.sessionErr()
}

// isClosed reports whether close has been called.
func (l *life) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state == volumeClosed
}

// canEvict reports whether the volume has a session, or may have another one, whose beginning ends
// that of another volume with the same Instance.
func (l *life) canEvict() bool {
	l.mu.Lock()
	state := l.state
	l.mu.Unlock()
	return state < volumeFailed &&
		(l.canReconnect || state == volumeOpening || l.sessionErr() == nil)
}

// sessionErr returns why there is no working session, or nil if there is one.
func (l *life) sessionErr() error {
	l.mu.Lock()
	failure := l.failure
	l.mu.Unlock()
	if failure != nil {
		return failure
	}
	return l.session.Load().Err()
}

// awaitSession waits for a session later than the given number.
func (l *life) awaitSession(number uint64) error {
	for {
		l.mu.Lock()
		state, failure, changed := l.state, l.failure, l.changed
		l.mu.Unlock()
		switch {
		case state == volumeClosed:
			return ErrClosed
		case state == volumeFailed:
			return failure
		case l.session.Load().id.number > number:
			return nil
		}
		<-changed
	}
}

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

// add counts one outage.
func (r *Reconnections) add(outage time.Duration) {
	r.Outage += outage
	r.LongestOutage = max(r.LongestOutage, outage)
}

// reconnections returns the counters with an outage that is still in progress.
func (l *life) reconnections() Reconnections {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.past
	if !l.since.IsZero() {
		r.add(time.Since(l.since))
	}
	return r
}

// outage returns how long the current outage has lasted, or 0 if there is none.
func (l *life) outage() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.since.IsZero() {
		return 0
	}
	return time.Since(l.since)
}
