// SPDX-License-Identifier: Apache-2.0

package softrdma

import (
	"cmp"
	"slices"

	"github.com/zc-relay/zc-relay/pkg/rdma/internal/registration"
)

// Sessions share threads, and their threads share cores.
//
// Within a thread, a session that keeps its queues full would make the others wait until all of its
// data has moved. So while several sessions are active, each moves a bounded amount in a turn, and
// the connections that have waited longest come first. Long turns are the more efficient ones.
// Turns are short while a light session is active, one that needs no more than those: what it waits
// for is the turns of the others.
//
// A thread that always has work, because of large payloads or many sessions, never yields its core
// for lack of work. The kernel preempts such a thread only at a scheduler tick, so a session on
// another thread would wait for milliseconds. A thread therefore yields deliberately while other
// sessions are active. It does not yield while its session is alone: that would only give the core
// to other threads that poll in vain.
const (
	// LongTurnBytes and ShortTurnBytes bound the bytes that a session moves in each direction per
	// turn while other sessions are active.
	LongTurnBytes  = 128 << 10
	ShortTurnBytes = 16 << 10
	// YieldBytes is the number of bytes after which a thread yields; with short turns it is theirs.
	YieldBytes = 64 << 10
	// lightTurns is the number of turns in which a light session has not moved as much as in a
	// short turn, and after which a light session that moves nothing is forgotten.
	lightTurns = 256
	// maxTurnsOwed is more turns than what one system call moves takes.
	maxTurnsOwed = 1 << 10
	// ContendedYields is how many times a thread yields after it last saw another session, which
	// may be waiting for this very core.
	ContendedYields = 256
)

// Direction is one of the two in which a connection moves bytes. Each has its own bounds, so that
// neither waits for the other.
type Direction uint8

const (
	Receiving Direction = iota
	Transmitting
	directions
)

// Fairness decides how much the connections of a completion queue move in a turn, and when its
// thread yields to other active sessions. It belongs to that thread.
type Fairness struct {
	shares     map[*registration.Domain]*share
	turn       uint64
	reached    uint64 // the last turn in which a session reached its bound
	lightUntil uint64 // the turn in which the last light session is forgotten
	yieldsLeft int    // 0 if no other session is active
	moved      int    // bytes since the last yield
	last       *share // that moved bytes
	announced  uint64 // 1 more than the last turn in which this queue told the others of a session
}

// share is what a session may still move.
type share struct {
	domain      *registration.Domain
	connections int
	busy        uint64             // the last turn in which it moved at least ShortTurnBytes
	turn        [directions]uint64 // for which left holds
	moved       [directions]int    // bytes in that turn
	left        [directions]int    // negative if the latest system call moved more than was left
}

// Member is a connection of a completion queue, as its Fairness sees it.
type Member struct {
	share *share
	moved [directions]uint64 // the last turn in which it moved bytes
}

// Join adds a connection of a session, whose protection domain identifies it.
func (f *Fairness) Join(m *Member, domain *registration.Domain) {
	if f.shares == nil {
		f.shares = make(map[*registration.Domain]*share)
	}
	m.share = f.shares[domain]
	if m.share == nil {
		m.share = &share{domain: domain, busy: f.turn}
		f.shares[domain] = m.share
	}
	m.share.connections++
}

// Leave removes a connection that has joined.
func (f *Fairness) Leave(m *Member) {
	if m.share.connections--; m.share.connections == 0 {
		delete(f.shares, m.share.domain)
	}
}

// BeginTurn begins a turn, and reports whether to yield before it. If so, it counts the yield.
func (f *Fairness) BeginTurn() (yield bool) {
	f.turn++
	if f.yieldsLeft == 0 || f.moved < min(YieldBytes, f.turnBytes()) {
		return false
	}
	f.moved = 0
	f.yieldsLeft--
	return true
}

// turnBytes returns how many bytes a session may move in a turn while others are active.
func (f *Fairness) turnBytes() int {
	if f.turn < f.lightUntil {
		return ShortTurnBytes
	}
	return LongTurnBytes
}

// Allowance returns how many bytes a connection may move in the rest of the turn: usual, or less
// while other sessions are active. A system call may move more, at the expense of later turns.
func (f *Fairness) Allowance(m *Member, d Direction, usual int) int {
	if f.yieldsLeft == 0 {
		return max(0, usual)
	}
	s := m.share
	if turns := f.turn - s.turn[d]; turns > 0 {
		s.turn[d], s.moved[d] = f.turn, 0
		bytes := f.turnBytes()
		s.left[d] = bytes + min(0, s.left[d]+int(min(turns-1, maxTurnsOwed))*bytes)
	}
	return max(0, min(usual, s.left[d]))
}

// Count records that a connection has moved bytes.
func (f *Fairness) Count(m *Member, d Direction, bytes int) {
	s := m.share
	if f.last != s || f.announced <= f.turn {
		f.noteActive(s)
	}
	f.moved += bytes
	m.moved[d] = f.turn
	if s.turn[d] != f.turn {
		return // no other session was active when the connection was allowed to
	}
	s.moved[d] += bytes
	if s.left[d] -= bytes; s.left[d] <= 0 {
		f.reached = f.turn
	}
	if s.moved[d] >= ShortTurnBytes {
		s.busy = f.turn
	} else if f.turn-s.busy > lightTurns {
		f.lightUntil = f.turn + lightTurns
	}
}

// noteActive finds out whether other sessions are active: on this queue, or on others of the
// device, with which a queue exchanges that once per turn. Each exchange writes to a cache line
// that all of them share.
func (f *Fairness) noteActive(s *share) {
	contended := f.last != s && f.last != nil
	f.last = s
	if f.announced <= f.turn {
		f.announced = f.turn + 1
		contended = s.domain.Activate() || contended
	}
	if contended {
		f.yieldsLeft = ContendedYields
	}
}

// SortByWait puts the connections that have waited longest first, if a session has reached its
// bound in this turn or the one before.
func SortByWait[T any](f *Fairness, d Direction, list []T, member func(T) *Member) {
	if f.yieldsLeft == 0 || f.turn-f.reached > 1 {
		return
	}
	slices.SortStableFunc(list, func(a, b T) int {
		return cmp.Compare(member(a).moved[d], member(b).moved[d])
	})
}
