// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Lessor is the target's side. Its methods, and those of its connections and sessions, may be
// called concurrently.
type Lessor struct {
	clock  Clock
	length time.Duration

	mu      sync.Mutex // guards what follows, and the fields of relays and connections
	tenants map[Instance]*tenant
	asked   int64 // the last question: the time when it was asked, but larger than the one before
}

// tenant is a relay, for as long as it has connections or sessions.
type tenant struct {
	instance    Instance
	until       atomic.Int64  // when the lease ends
	answered    int64         // the latest question that the relay has answered
	heard       chan struct{} // closed and replaced when answered has changed
	connections map[*Tenancy]struct{}
	sessions    map[uint64]*Session
	// called is the last question before the first roll call that the relay has not answered yet,
	// and calledAt the time of that. Both are 0 if there is none.
	called, calledAt int64
}

// NewLessor returns a lessor. A length of 0 is Length, and a nil clock Boottime.
func NewLessor(length time.Duration, clock Clock) *Lessor {
	if length == 0 {
		length = Length
	}
	if clock == nil {
		clock = Boottime
	}
	return &Lessor{clock: clock, length: length, tenants: make(map[Instance]*tenant)}
}

// Length returns how long a lease lasts.
func (l *Lessor) Length() time.Duration { return l.length }

// Tenancy is a control connection of a relay.
type Tenancy struct {
	lessor   *Lessor
	announce func()
	// What follows is guarded by Lessor.mu.
	tenant *tenant // nil until the relay has answered
	// The sessions that the relay has last named here.
	ended, awaited []uint64
	closed         bool
}

// Connect adds a control connection. announce sends a keep-alive with what Question returns; it
// must neither block nor call back.
func (l *Lessor) Connect(announce func()) *Tenancy {
	return &Tenancy{lessor: l, announce: announce}
}

func (c *Tenancy) tell() { c.announce() }

// Question returns what to say next on the connection.
func (c *Tenancy) Question() Question {
	l := c.lessor
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked = max(l.clock(), l.asked+1)
	return Question{Number: uint64(l.asked), Noted: slices.Clone(c.ended),
		Confirmed: c.confirmedLocked()}
}

func (c *Tenancy) confirmedLocked() []uint64 {
	var confirmed []uint64
	for _, number := range slices.Concat(c.ended, c.awaited) {
		if _, exists := c.tenant.sessions[number]; !exists {
			confirmed = append(confirmed, number)
		}
	}
	return confirmed
}

// Hear takes a relay's answer. It ends the sessions that the answer names, and then extends the
// lease. An error is a violation of the protocol.
func (c *Tenancy) Hear(a *Answer) error {
	if a.Instance == (Instance{}) {
		return nil
	}
	l := c.lessor
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.closed {
		return nil
	}
	if a.Question > uint64(l.asked) {
		return status.Errorf(status.Unexpected, "the relay answers question %d, which nobody has asked",
			a.Question)
	}
	if c.tenant == nil {
		c.joinLocked(a.Instance)
	} else if c.tenant.instance != a.Instance {
		return status.Errorf(status.Unexpected, "the relay answers for another instance than before")
	}
	t := c.tenant
	for _, number := range a.Ended {
		if s := t.sessions[number]; s != nil {
			s.endLocked(status.Errorf(status.ConnectionReset, "the relay has ended the session"))
		}
	}
	c.ended, c.awaited = slices.Clone(a.Ended), slices.Clone(a.Awaited)
	if len(c.ended) > 0 || len(c.confirmedLocked()) > 0 {
		c.announce()
	}
	t.extendLocked(int64(a.Question), l.length)
	return nil
}

func (c *Tenancy) joinLocked(instance Instance) {
	l := c.lessor
	t := l.tenants[instance]
	if t == nil {
		t = &tenant{instance: instance, heard: make(chan struct{}),
			connections: make(map[*Tenancy]struct{}), sessions: make(map[uint64]*Session)}
		l.tenants[instance] = t
	}
	t.connections[c] = struct{}{}
	c.tenant = t
}

// extendLocked extends the lease by the answer to a question. A lane that finds the new end of the
// lease must also find what has ended before: see Session.Check.
func (t *tenant) extendLocked(question int64, length time.Duration) {
	if question <= t.answered {
		return
	}
	t.answered = question
	t.until.Store(question + int64(length))
	close(t.heard)
	t.heard = make(chan struct{})
	for _, s := range t.sessions {
		if s.parked.Swap(false) {
			s.resume()
		}
	}
}

// Disconnect removes the connection. Its relay keeps its lease, which others may extend.
func (c *Tenancy) Disconnect() {
	l := c.lessor
	l.mu.Lock()
	defer l.mu.Unlock()
	c.closed = true
	if t := c.tenant; t != nil {
		delete(t.connections, c)
		l.forgetLocked(t)
	}
}

func (l *Lessor) forgetLocked(t *tenant) {
	if len(t.connections) == 0 && len(t.sessions) == 0 {
		delete(l.tenants, t.instance)
	}
}

// Session is a session whose changes need its relay's lease. A nil session is one whose relay
// cannot be asked, and needs none.
type Session struct {
	lessor *Lessor
	tenant *tenant
	number uint64
	end    func(reason error)
	resume func()
	ended  atomic.Bool
	parked atomic.Bool // a change waits for the lease
}

// Open adds a session of the connection's relay. end ends it with a reason, and resume makes its
// lanes look again at what waits for the lease; both must neither block nor call back. It fails
// with status.AlreadyExist if the relay has a session of that number, and with status.Unexpected if
// the relay has not answered yet.
func (c *Tenancy) Open(number uint64, end func(reason error), resume func()) (*Session, error) {
	l := c.lessor
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.tenant == nil || c.closed {
		return nil, status.Errorf(status.Unexpected,
			"the relay opens session %d without an instance", number)
	}
	t := c.tenant
	if t.sessions[number] != nil {
		return nil, status.Errorf(status.AlreadyExist, "the relay has session %d already", number)
	}
	s := &Session{lessor: l, tenant: t, number: number, end: end, resume: resume}
	t.sessions[number] = s
	return s, nil
}

// Verdict is what Check says about a change.
type Verdict uint8

// The verdicts of Check.
const (
	// Valid lets the change be submitted now.
	Valid Verdict = iota
	// Parked makes the change wait until the session's resume is called.
	Parked
	// Ended makes the change wait for the end of the session, which is near.
	Ended
)

// Now returns the time for Check. It costs a system call: a lane reads it once for all changes of a
// turn, which is much shorter than the hundredth of a lease that the relay waits in addition.
func (s *Session) Now() int64 { return s.lessor.clock() }

// Check decides about a change that is about to be submitted. It neither locks nor blocks.
func (s *Session) Check(now int64) Verdict {
	if s == nil {
		return Valid
	}
	// The order matters: an answer ends sessions before it extends the lease.
	valid := now <= s.tenant.until.Load()
	switch {
	case s.ended.Load():
		return Ended
	case valid:
		return Valid
	}
	// An answer that comes between now and the next line finds nothing parked.
	s.parked.Store(true)
	if s.lessor.clock() <= s.tenant.until.Load() && !s.ended.Load() {
		return Valid
	}
	return Parked
}

// End lets nothing of the session pass any more. The caller ends the session itself.
func (s *Session) End() {
	if s != nil {
		s.ended.Store(true)
	}
}

func (s *Session) endLocked(reason error) {
	s.ended.Store(true)
	s.end(reason)
}

// Close removes a session of which nothing can take effect any more: its IO has completed. The
// relay is told if it has asked.
func (s *Session) Close() {
	if s == nil {
		return
	}
	l, t := s.lessor, s.tenant
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.sessions[s.number] != s {
		return
	}
	delete(t.sessions, s.number)
	for c := range t.connections {
		if slices.Contains(c.ended, s.number) || slices.Contains(c.awaited, s.number) {
			c.announce()
		}
	}
	l.forgetLocked(t)
}

// RollCall asks the relays of sessions whether they still live, and ends the sessions of those that
// have not answered within the length of a lease. When it returns, each of the sessions has ended,
// or was alive after the call began. It fails if ctx ends before. Then the next call continues, so
// that those who have little time get there together.
func (l *Lessor) RollCall(ctx context.Context, sessions []*Session) error {
	call := l.call(sessions)
	for {
		heard, rest := call.next()
		if heard == nil {
			return nil
		}
		timeout := time.NewTimer(rest + time.Millisecond)
		select {
		case <-heard:
			timeout.Stop()
		case <-timeout.C:
		case <-ctx.Done():
			timeout.Stop()
			return status.Errorf(status.TimeOut, "wait until the relays of other sessions have "+
				"answered, or their lease is over: %w", ctx.Err())
		}
	}
}

// rollCall is a RollCall in progress. Lessor.mu guards it.
type rollCall struct {
	lessor *Lessor
	asked  int64             // answers to later questions count
	until  map[*tenant]int64 // when it is over
	absent map[*tenant][]*Session
}

// leastCall is how long a roll call lasts at least, as a part of a lease, however long ago the
// first one was: this process may have been stopped meanwhile, and has yet to read the answers.
const leastCall = 5

func (l *Lessor) call(sessions []*Session) *rollCall {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock()
	r := &rollCall{lessor: l, asked: l.asked, until: make(map[*tenant]int64),
		absent: make(map[*tenant][]*Session)}
	for _, s := range sessions {
		if s != nil {
			r.absent[s.tenant] = append(r.absent[s.tenant], s)
		}
	}
	for t := range r.absent {
		if t.calledAt == 0 || t.answered > t.called {
			t.called, t.calledAt = l.asked, now
		}
		r.until[t] = max(t.calledAt+int64(l.length), now+int64(l.length)/leastCall)
		announceOnSome(t.connections, (*Tenancy).tell)
	}
	return r
}

// next returns nil if all have answered or ended. Otherwise it returns a channel that is closed
// when one of the relays answers, and when to look again without that.
func (r *rollCall) next() (heard <-chan struct{}, rest time.Duration) {
	l := r.lessor
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock()
	for t, called := range r.absent {
		if left := r.until[t] - now; t.answered <= r.asked && left > 0 {
			heard, rest = t.heard, time.Duration(left)
			continue
		}
		delete(r.absent, t)
		if t.answered > r.asked {
			continue
		}
		for _, s := range called {
			s.endLocked(status.Errorf(status.TimeOut,
				"the relay has not answered for %v, and another session opens the volume", l.length))
		}
	}
	return heard, rest
}
