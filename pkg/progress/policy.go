package progress

import (
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Mode is what a thread does when there is nothing to do.
type Mode uint8

const (
	// Adaptive gives the core away between empty polls and falls asleep
	// after Policy.SpinTime without work. It suits cores that are shared.
	Adaptive Mode = iota
	// Busy polls without pause and never sleeps. It is for dedicated cores.
	Busy
	// Event falls asleep at once.
	Event
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
	}
	return "invalid"
}

// ParseMode accepts "adaptive", "busy" and "event".
func ParseMode(name string) (Mode, error) {
	for _, m := range []Mode{Adaptive, Busy, Event} {
		if m.String() == name {
			return m, nil
		}
	}
	return 0, status.Errorf(status.InvalidValue, "poll mode %q is none of adaptive, busy, event", name)
}

// DefaultSpinTime is how long an adaptive thread polls in vain before it
// sleeps. It is longer than a round trip to the storage, so that a thread
// that waits for the answer to a single IO stays awake, and short enough
// that an idle process costs nothing.
const DefaultSpinTime = 200 * time.Microsecond

// Policy says how a thread polls. The zero value is adaptive polling with
// the default spin time.
type Policy struct {
	Mode Mode
	// SpinTime is used by Adaptive; 0 means DefaultSpinTime.
	SpinTime time.Duration
}

func (p *Policy) validate() error {
	if p.Mode > Event {
		return status.Errorf(status.InvalidValue, "poll mode %d does not exist", p.Mode)
	}
	if p.SpinTime < 0 {
		return status.Errorf(status.InvalidValue, "spin time %v is negative", p.SpinTime)
	}
	if p.SpinTime == 0 {
		p.SpinTime = DefaultSpinTime
	}
	return nil
}
