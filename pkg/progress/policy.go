// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"sync/atomic"
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Mode is what a thread does when there is no work.
type Mode uint8

const (
	// Adaptive yields the core between empty polls and sleeps after Policy.SpinTime without work.
	// It suits shared cores.
	Adaptive Mode = iota
	// Busy polls without pause and never sleeps. It is for dedicated cores.
	Busy
	// Event sleeps after the first empty poll.
	Event
	// Stepped calls Policy.Step after every turn and never sleeps by itself. It lets a simulation
	// decide when each thread takes its next turn.
	Stepped
)

// String returns the name that ParseMode accepts.
func (m Mode) String() string {
	switch m {
	case Adaptive:
		return "adaptive"
	case Busy:
		return "busy"
	case Event:
		return "event"
	case Stepped:
		return "stepped"
	}
	return "invalid"
}

// ParseMode accepts "adaptive", "busy", and "event".
func ParseMode(name string) (Mode, error) {
	for _, m := range []Mode{Adaptive, Busy, Event} {
		if m.String() == name {
			return m, nil
		}
	}
	return 0, status.Errorf(status.InvalidValue,
		"invalid poll mode %q: must be adaptive, busy, or event", name)
}

// DefaultSpinTime is how long an adaptive thread polls without finding work before it sleeps. It is
// longer than a round trip to the storage, so that a thread waiting for a single IO stays awake,
// and short enough that an idle process costs nothing.
const DefaultSpinTime = 200 * time.Microsecond

// Policy is how a thread polls. The zero value means adaptive polling with the default spin time.
type Policy struct {
	Mode Mode
	// SpinTime is used by Adaptive; 0 means DefaultSpinTime.
	SpinTime time.Duration
	// Step is used by Stepped. The engine's thread calls it after every turn with the amount of
	// work done, and takes the next turn when it returns.
	Step func(work int)
}

func (p *Policy) validate() error {
	if p.Mode > Stepped {
		return status.Errorf(status.InvalidValue, "unknown poll mode %d", p.Mode)
	}
	if (p.Mode == Stepped) != (p.Step != nil) {
		return status.Errorf(status.InvalidValue,
			"poll mode %v: the mode stepped, and no other, needs a step function", p.Mode)
	}
	if p.SpinTime < 0 {
		return status.Errorf(status.InvalidValue, "spin time %v is negative", p.SpinTime)
	}
	if p.SpinTime == 0 {
		p.SpinTime = DefaultSpinTime
	}
	return nil
}

// Stats counts what an engine has done since it was created.
type Stats struct {
	Hits   uint64 // turns with work
	Misses uint64 // turns without work
	Sleeps uint64 // sleeps in the kernel
	// LateWakeups counts sleeps that ended with the safety timeout although an armed waiter had
	// work: lost wake-ups. It stays 0 unless there is a bug.
	LateWakeups uint64
}

// publishEvery is the number of turns after which a thread that never sleeps publishes its counts.
const publishEvery = 1024

// statistics counts locally and publishes from time to time, because an atomic addition in every
// empty turn would cost more than the turn.
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

// Stats returns the engine's counts, which may lag behind by some turns. Any goroutine may call it.
func (e *Engine) Stats() Stats {
	p := &e.stats.published
	return Stats{Hits: p[0].Load(), Misses: p[1].Load(), Sleeps: p[2].Load(),
		LateWakeups: p[3].Load()}
}
