// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"context"
	"crypto/rand"
	"slices"
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Lessee is a relay's side. Its methods, and those of its connections and sessions, may be called
// concurrently.
type Lessee struct {
	clock  Clock
	verify func()

	verifying sync.Mutex    // held while verify runs
	asked     chan struct{} // has an element while a question waits for Run

	mu        sync.Mutex // guards what follows, and the fields of targets and connections
	landlords map[way]*landlord
}

// way leads to a process of a target. Two routes to one process are as two processes, so that a
// peer that claims to be a process which is reached elsewhere learns nothing of the instance there.
type way struct {
	process uint64
	route   any
}

// landlord is a process of a target, for as long as the relay has connections to it, or sessions
// there that have not ended for certain. If the relay meets it again later, it is another instance.
type landlord struct {
	way
	instance    Instance
	length      time.Duration
	connections map[*Connection]struct{}
	sessions    map[*RelaySession]struct{} // that live, or are not confirmed
	ended       []*RelaySession            // those that have ended and are not noted
	awaited     []*RelaySession            // those that are noted
	number      uint64                     // of the last session
	answered    int64                      // when the latest question came that has been answered
}

// NewLessee returns a lessee. verify looks at every client, and calls RelaySession.End for
// the sessions of those that have ended; it returns when it has. A nil clock is Boottime.
func NewLessee(clock Clock, verify func()) *Lessee {
	if clock == nil {
		clock = Boottime
	}
	return &Lessee{clock: clock, verify: verify, asked: make(chan struct{}, 1),
		landlords: make(map[way]*landlord)}
}

// A look at all clients costs a system call for each, and a peer may ask all the time. Run rests
// after a look for verifyRest times as long as the look took, so that looks take a hundredth of a
// core at most, but within these bounds: whoever opens a volume that others have open waits for an
// answer, and a look is measured by a clock that runs while the thread does not.
const (
	verifyRest     = 100
	leastVerifyGap = 2 * time.Millisecond
	mostVerifyGap  = 100 * time.Millisecond
)

// Run answers questions until ctx ends. Without it, none is answered but by AnswerNow.
func (l *Lessee) Run(ctx context.Context) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-pause.C:
		case <-ctx.Done():
			return
		}
		select {
		case <-l.asked:
		case <-ctx.Done():
			return
		}
		began := l.clock()
		for _, c := range l.verifyClients() {
			c.announce()
		}
		took := time.Duration(l.clock() - began)
		pause.Reset(min(max(verifyRest*took, leastVerifyGap), mostVerifyGap))
	}
}

// verifyClients looks at all clients, so that the questions that have come before can be answered.
// It returns the connections with such questions.
func (l *Lessee) verifyClients() []*Connection {
	l.verifying.Lock()
	defer l.verifying.Unlock()
	asked := make(map[*Connection]question)
	l.mu.Lock()
	for _, t := range l.landlords {
		for c := range t.connections {
			if c.asked.number > c.verified.number {
				asked[c] = c.asked
			}
		}
	}
	l.mu.Unlock()
	l.verify()
	l.mu.Lock()
	defer l.mu.Unlock()
	var connections []*Connection
	for c, question := range asked {
		c.verified = question
		connections = append(connections, c)
	}
	return connections
}

// Connection is a control connection to a target. A nil connection leads to one that asks nothing.
type Connection struct {
	lessee   *Lessee
	landlord *landlord
	announce func()
	asked    question // the last one that has come
	verified question // the last one that can be answered
}

type question struct {
	number uint64
	at     int64 // when it came
}

// Connect adds a connection to a process of a target whose leases last for length, and takes its
// first question. Connections to the process share the lease, and an instance, if their routes are
// equal. It returns nil if the target asks nothing. announce sends a keep-alive with what Answer
// returns; it must neither block nor call back.
func (l *Lessee) Connect(
	process uint64, route any, length time.Duration, first uint64, announce func(),
) *Connection {
	if process == 0 || length <= 0 {
		return nil
	}
	l.mu.Lock()
	l.forgetLocked()
	to := way{process, route}
	t := l.landlords[to]
	if t == nil {
		t = &landlord{way: to, length: length, connections: make(map[*Connection]struct{}),
			sessions: make(map[*RelaySession]struct{})}
		_, _ = rand.Read(t.instance[:]) // never fails
		l.landlords[to] = t
	}
	c := &Connection{lessee: l, landlord: t, announce: announce}
	t.connections[c] = struct{}{}
	l.mu.Unlock()
	c.Hear(&Question{Number: first})
	return c
}

func (c *Connection) tell() { c.announce() }

// Disconnect removes the connection.
func (c *Connection) Disconnect() {
	if c == nil {
		return
	}
	c.lessee.mu.Lock()
	defer c.lessee.mu.Unlock()
	delete(c.landlord.connections, c)
	c.lessee.forgetLocked()
}

// forgetLocked forgets the targets of which nothing is left: neither a connection nor a session
// that may still have a lease. The relay never answers for that instance again.
func (l *Lessee) forgetLocked() {
	now := l.clock()
	for to, t := range l.landlords {
		over := slices.Concat(t.ended, t.awaited)
		if len(t.connections) > 0 || len(t.sessions) > len(over) ||
			slices.ContainsFunc(over, func(s *RelaySession) bool { return now <= s.until() }) {
			continue
		}
		for _, s := range over {
			s.confirmLocked()
		}
		delete(l.landlords, to)
	}
}

// Hear takes what a target says in a keep-alive.
func (c *Connection) Hear(q *Question) {
	if c == nil {
		return
	}
	l := c.lessee
	l.mu.Lock()
	defer l.mu.Unlock()
	t := c.landlord
	for _, s := range slices.Clone(t.ended) {
		if slices.Contains(q.Noted, s.number) {
			t.ended = without(t.ended, s)
			t.awaited = append(t.awaited, s)
		}
	}
	for _, s := range slices.Concat(t.ended, t.awaited) {
		if slices.Contains(q.Confirmed, s.number) {
			s.confirmLocked()
		}
	}
	if q.Number <= c.asked.number {
		return
	}
	c.asked = question{q.Number, l.clock()}
	select {
	case l.asked <- struct{}{}:
	default:
	}
}

// Answer returns what to say next on the connection.
func (c *Connection) Answer() Answer {
	if c == nil {
		return Answer{}
	}
	l, t := c.lessee, c.landlord
	l.mu.Lock()
	defer l.mu.Unlock()
	a := Answer{Instance: t.instance}
	for _, s := range t.ended[:min(len(t.ended), MaxEnded)] {
		a.Ended = append(a.Ended, s.number)
	}
	for _, s := range t.awaited[:min(len(t.awaited), MaxEnded)] {
		a.Awaited = append(a.Awaited, s.number)
	}
	if len(t.ended) <= MaxEnded {
		a.Question = c.verified.number
		t.answered = max(t.answered, c.verified.at)
	}
	return a
}

// AnswerNow looks at all clients, and returns an answer to the last question.
func (c *Connection) AnswerNow() Answer {
	if c == nil {
		return Answer{}
	}
	c.lessee.verifyClients()
	return c.Answer()
}

// RelaySession is a session of the relay at a target. A nil session is one at a target that asks
// nothing; it ends when its connections do.
type RelaySession struct {
	lessee    *Lessee
	landlord  *landlord
	number    uint64
	volume    Place
	over      bool
	overSince int64
	last      int64 // when the last question came that was answered without naming the session
	confirmed chan struct{}
}

// Place tells where a volume is served: its UUID, and what excludes that two processes serve it.
type Place struct {
	// Channel is the channel of the relay. Targets of other channels are not believed: they may
	// belong to somebody else, and neither UUID nor Sole is a secret.
	Channel string
	UUID    [16]byte
	// Sole names what keeps two processes from serving the volume at a time, and the IO of a former
	// one from taking effect when another one serves it. It is empty if nothing does.
	Sole string
}

// Begin adds a session, before the target hears of it.
func (c *Connection) Begin(volume Place) *RelaySession {
	if c == nil {
		return nil
	}
	c.lessee.mu.Lock()
	defer c.lessee.mu.Unlock()
	t := c.landlord
	t.number++
	s := &RelaySession{lessee: c.lessee, landlord: t, number: t.number, volume: volume,
		confirmed: make(chan struct{})}
	t.sessions[s] = struct{}{}
	return s
}

// Number returns the session's number, 0 if the target asks nothing.
func (s *RelaySession) Number() uint64 {
	if s == nil {
		return 0
	}
	return s.number
}

// End ends the session: every later answer names it. It has no effect if the session has ended.
func (s *RelaySession) End() {
	if s == nil {
		return
	}
	s.lessee.mu.Lock()
	defer s.lessee.mu.Unlock()
	t := s.landlord
	if _, exists := t.sessions[s]; s.over || !exists {
		return
	}
	s.over, s.overSince, s.last = true, s.lessee.clock(), t.answered
	t.ended = append(t.ended, s)
	announceOnSome(t.connections, (*Connection).tell)
}

// Confirm says that nothing of the session can take effect any more: the target has said so in
// another way, or has never had the session.
func (s *RelaySession) Confirm() {
	if s == nil {
		return
	}
	s.lessee.mu.Lock()
	defer s.lessee.mu.Unlock()
	s.confirmLocked()
}

func (s *RelaySession) confirmLocked() {
	t := s.landlord
	if _, exists := t.sessions[s]; !exists {
		return
	}
	delete(t.sessions, s)
	t.ended, t.awaited = without(t.ended, s), without(t.awaited, s)
	close(s.confirmed)
}

func without(sessions []*RelaySession, s *RelaySession) []*RelaySession {
	return slices.DeleteFunc(sessions, func(other *RelaySession) bool { return other == s })
}

// until returns when the last lease is over that did not name the session. 0 means that there was
// none.
func (s *RelaySession) until() int64 {
	if s.last == 0 {
		return 0
	}
	return s.last + int64(WithDrift(s.landlord.length))
}

// Await waits until nothing of a session that has ended can take effect any more. A target that has
// noted the session confirms it when its last change has finished, however long that takes;
// otherwise the session has no lease after a while. The storage of that target may not answer, so
// Await calls ask again and again, which asks others and leads to Replaced. Await fails with
// status.TimeOut if ctx ends before.
func (s *RelaySession) Await(ctx context.Context, ask func()) error {
	if s == nil {
		return nil
	}
	for {
		settled, rest := s.isSettled()
		if settled {
			return nil
		}
		ask()
		timer := time.NewTimer(min(rest, askPause))
		select {
		case <-s.confirmed:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return status.Errorf(status.TimeOut, "wait until the target has ended the session: %w",
				ctx.Err())
		}
		timer.Stop()
	}
}

// isSettled reports whether nothing of a session that has ended can take effect any more, and
// otherwise when to ask again.
func (s *RelaySession) isSettled() (settled bool, again time.Duration) {
	s.lessee.mu.Lock()
	defer s.lessee.mu.Unlock()
	s.lessee.forgetLocked()
	t := s.landlord
	if _, exists := t.sessions[s]; !exists {
		return true, 0
	}
	rest := time.Duration(s.until() - s.lessee.clock())
	switch {
	case rest >= 0:
		return false, rest + time.Millisecond
	case slices.Contains(t.awaited, s):
		return false, askPause
	}
	return true, 0
}

// askPause is how often Await looks whether the target is still there that has noted a session, and
// asks others.
const askPause = time.Second / 4

// Awaits reports whether the relay waits until nothing takes effect any more of a session that a
// channel had at another process than the given one.
func (l *Lessee) Awaits(channel string, process uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.overElsewhereLocked(process),
		func(s *RelaySession) bool { return s.volume.Channel == channel })
}

// overElsewhereLocked returns the sessions at other processes that have ended and are not
// confirmed.
func (l *Lessee) overElsewhereLocked(process uint64) (over []*RelaySession) {
	for _, t := range l.landlords {
		if t.process != process {
			over = slices.Concat(over, t.ended, t.awaited)
		}
	}
	return over
}

// Now returns the time for Replaced.
func (l *Lessee) Now() int64 { return l.clock() }

// Replaced says that a process has served a volume at a time since the relay asked, and has made
// sure of that: a process that has lost a volume may not know. If only one process at a time can
// serve the volume, nothing takes effect any more of sessions that other processes had until then.
// It says nothing of sessions that have ended since: the other process may have taken the volume
// over meanwhile.
func (l *Lessee) Replaced(process uint64, volume Place, asked int64) {
	if process == 0 || volume.Sole == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.overElsewhereLocked(process) {
		if s.volume == volume && s.overSince <= asked {
			s.confirmLocked()
		}
	}
}
