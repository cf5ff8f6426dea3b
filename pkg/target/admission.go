// SPDX-License-Identifier: Apache-2.0

package target

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// leastPending is how many pending connections are allowed at least, however few sessions are
// configured and however few descriptors are left.
const leastPending = 16

// admission decides which control connections the target keeps. A connection is pending until its
// relay has authenticated itself by TLS or, in plain text, has sent its hello; then it becomes a
// session. Anyone can make pending connections, so beyond a limit the oldest is aborted: a relay is
// done within a few round trips, so the oldest is the one most likely to belong to somebody else,
// or to a relay of the DOCA applications that waits for its initiator. Pending connections never
// displace a session.
//
// Without TLS, a session costs anyone no more than a hello. So at the limit of sessions, a newcomer
// displaces the oldest one that has opened no volume, of the source with the most of these. The
// methods may be called concurrently.
type admission struct {
	maxSessions int
	rate        *sessionRate

	mu sync.Mutex // guards what follows
	// limit bounds the pending connections, half of it those of one source. It falls when the
	// process runs out of descriptors, and rises again with each new session.
	limit    int
	pending  []*pendingConnection // oldest first
	sources  map[netip.Prefix]int // pending connections by source
	sessions map[*session]struct{}
	// idle holds the sessions that have opened no volume, in the order in which they were admitted.
	idle   []*pendingConnection
	closed bool
}

// pendingConnection is a control connection that is not a session yet. Its context ends with it
// and, once it is a session, with that.
type pendingConnection struct {
	stream network.Stream
	source netip.Prefix
	ctx    context.Context
	cancel context.CancelCauseFunc

	session *session // nil while it is pending
}

func newAdmission(maxSessions int, rate *sessionRate) *admission {
	a := &admission{
		maxSessions: maxSessions, rate: rate,
		sources: make(map[netip.Prefix]int), sessions: make(map[*session]struct{}),
	}
	a.limit = a.maxLimit()
	return a
}

// maxLimit returns the highest limit of pending connections. A relay whose sessions all reconnect
// at once stays within the share of one source.
func (a *admission) maxLimit() int { return max(2*a.maxSessions, leastPending) }

// add adds a connection. It returns the one that had to give way, which it has aborted, or nil.
func (a *admission) add(stream network.Stream) (p, evicted *pendingConnection) {
	p = &pendingConnection{
		stream: stream, source: network.SourceOf(network.AddressOf(stream.RemoteAddr()).Addr()),
	}
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	a.mu.Lock()
	if a.sources[p.source] >= a.limit/2 {
		evicted = a.evict(p.source)
	} else if len(a.pending) >= a.limit {
		evicted = a.evict(a.largestSource())
	}
	a.pending = append(a.pending, p)
	a.sources[p.source]++
	a.mu.Unlock()
	if evicted != nil {
		evicted.abort()
	}
	return p, evicted
}

// shed halves the limit, because the process has run out of descriptors, and aborts the connections
// beyond it. It returns how many.
func (a *admission) shed() int {
	a.mu.Lock()
	a.limit = max(min(a.limit, len(a.pending))/2, leastPending)
	var evicted []*pendingConnection
	for len(a.pending) > a.limit {
		evicted = append(evicted, a.evict(a.largestSource()))
	}
	a.mu.Unlock()
	for _, p := range evicted {
		p.abort()
	}
	return len(evicted)
}

// largestSource returns the source with the most pending connections. The caller holds mu.
func (a *admission) largestSource() netip.Prefix {
	return slices.MaxFunc(a.pending, func(p, q *pendingConnection) int {
		return a.sources[p.source] - a.sources[q.source]
	}).source
}

// evict removes the oldest pending connection of a source that has one. The caller holds mu, and
// aborts the connection without it.
func (a *admission) evict(source netip.Prefix) *pendingConnection {
	i := slices.IndexFunc(a.pending,
		func(p *pendingConnection) bool { return p.source == source })
	p := a.pending[i]
	a.removeAt(i)
	return p
}

// abort ends a connection at once: its goroutine and its descriptor must not wait for the peer.
func (p *pendingConnection) abort() {
	_ = p.stream.SetLinger(0)
	_ = p.stream.Close()
}

func (a *admission) removeAt(i int) {
	source := a.pending[i].source
	a.pending = slices.Delete(a.pending, i, i+1)
	if a.sources[source]--; a.sources[source] == 0 {
		delete(a.sources, source)
	}
}

// remove removes a connection that has ended before it became a session. It returns false if it was
// not pending any more.
func (a *admission) remove(p *pendingConnection) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.Index(a.pending, p)
	if i >= 0 {
		a.removeAt(i)
	}
	return i >= 0
}

// admit makes a pending connection a session, or returns why it cannot be one.
func (a *admission) admit(p *pendingConnection, s *session) error {
	wasPending := a.remove(p)
	displaced, err := a.tryAdmit(p, s, wasPending)
	if displaced != nil {
		displaced.cancel(status.Errorf(status.Full,
			"a later session has displaced this one, which had opened no volume"))
		displaced.abort()
	}
	return err
}

// tryAdmit returns the session that had to give way, or nil.
func (a *admission) tryAdmit(p *pendingConnection, s *session, wasPending bool,
) (displaced *pendingConnection, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	isFull := len(a.sessions) >= a.maxSessions
	switch {
	case a.closed:
		return nil, errShuttingDown
	case !wasPending:
		return nil, status.Errorf(status.ConnectionAborted,
			"more than %d connections are waiting to be greeted", a.limit)
	case isFull && len(a.idle) == 0:
		return nil, status.Errorf(status.Full, "the target has reached its maximum of %d sessions",
			a.maxSessions)
	}
	if err := a.rate.admit(time.Now()); err != nil {
		return nil, err
	}
	if isFull {
		displaced = a.oldestIdle()
		a.releaseLocked(displaced.session)
	}
	a.sessions[s] = struct{}{}
	p.session = s
	a.idle = append(a.idle, p)
	a.limit = min(a.limit+1, a.maxLimit())
	return displaced, nil
}

// oldestIdle returns the oldest session without a volume of the source that has the most of them.
// There is one. The caller holds mu.
func (a *admission) oldestIdle() *pendingConnection {
	count := make(map[netip.Prefix]int)
	for _, p := range a.idle {
		count[p.source]++
	}
	return slices.MaxFunc(a.idle, func(p, q *pendingConnection) int {
		return count[p.source] - count[q.source]
	})
}

// keep makes a session that opens a volume one that nobody displaces. It fails if that has happened
// already.
func (a *admission) keep(s *session) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, isOpen := a.sessions[s]; !isOpen {
		return status.Errorf(status.ConnectionAborted, "the session has been displaced")
	}
	a.removeIdle(s)
	return nil
}

func (a *admission) removeIdle(s *session) {
	a.idle = slices.DeleteFunc(a.idle, func(p *pendingConnection) bool { return p.session == s })
}

// release removes a session that has ended.
func (a *admission) release(s *session) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.releaseLocked(s)
}

func (a *admission) releaseLocked(s *session) {
	delete(a.sessions, s)
	a.removeIdle(s)
}

// count returns the number of sessions.
func (a *admission) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.sessions)
}

// open returns the open sessions.
func (a *admission) open() []*session {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Keys(a.sessions))
}

// close ends all pending connections, and admits no more sessions. It returns those that are open.
func (a *admission) close() []*session {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	for _, p := range a.pending {
		p.cancel(errShuttingDown) // does not block
	}
	return slices.Collect(maps.Keys(a.sessions))
}

// sessionRate admits sessions at the rate that the target sustains. The methods may be called
// concurrently.
type sessionRate struct {
	perSecond int
	turns     *retry.Turns
	log       *zap.Logger

	postponed atomic.Uint64

	mu     sync.Mutex // guards what follows
	latest time.Time  // postponement
}

// stormPause separates two storms in the log.
const stormPause = 10 * time.Second

func newSessionRate(perSecond int, log *zap.Logger) *sessionRate {
	return &sessionRate{perSecond: perSecond,
		turns: retry.NewTurns(perSecond, controlmsg.MaxRetryAfter), log: log}
}

// admit counts a session that opens now. Otherwise it returns an error that says when to try again.
func (r *sessionRate) admit(now time.Time) error {
	wait := r.turns.Admit(now)
	if wait == 0 {
		return nil
	}
	r.postponed.Add(1)
	r.report(now)
	return controlmsg.Postpone(wait, "the target admits %d sessions per second "+
		"(limits.sessions_per_second): try again in %d ms", r.perSecond,
		(wait+time.Millisecond-1)/time.Millisecond)
}

// report logs the beginning of a storm.
func (r *sessionRate) report(now time.Time) {
	r.mu.Lock()
	isNews := now.Sub(r.latest) > stormPause
	r.latest = now
	r.mu.Unlock()
	if isNews {
		r.log.Warn("sessions are opened faster than the target admits them: the others are told "+
			"when to try again", zap.Int("per_second", r.perSecond))
	}
}
