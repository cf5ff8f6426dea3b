package progress

import "sync/atomic"

// Stats counts what an engine did since it was made.
type Stats struct {
	Hits   uint64 // turns that found work
	Misses uint64 // turns that found none
	Sleeps uint64 // times the thread slept in the kernel
	// LateWakeups counts work that was found by a safety timeout although its
	// context was armed: a lost wake-up. It is 0 unless there is a bug.
	LateWakeups uint64
}

// publishEvery is after how many turns a thread that is never idle makes its
// counts visible.
const publishEvery = 1024

// statistics counts locally and publishes now and then, because an atomic
// addition in every empty turn would cost more than the turn.
type statistics struct {
	local     Stats
	unseen    int
	published [4]atomic.Uint64
}

func (s *statistics) turn(work int) {
	if work > 0 {
		s.local.Hits++
	} else {
		s.local.Misses++
	}
	if s.unseen++; s.unseen == publishEvery {
		s.publish()
	}
}

func (s *statistics) publish() {
	s.unseen = 0
	s.published[0].Store(s.local.Hits)
	s.published[1].Store(s.local.Misses)
	s.published[2].Store(s.local.Sleeps)
	s.published[3].Store(s.local.LateWakeups)
}

// Stats returns the engine's counts; they may lag behind by some turns.
func (e *Engine) Stats() Stats {
	p := &e.stats.published
	return Stats{Hits: p[0].Load(), Misses: p[1].Load(), Sleeps: p[2].Load(), LateWakeups: p[3].Load()}
}
