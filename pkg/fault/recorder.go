// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"time"

	"github.com/zc-relay/zc-relay/internal/recorder"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Event is the match of a rule.
type Event struct {
	Time      time.Time
	Seam      Seam
	Operation string
	Kind      string // of the message, if a rule asks for it
	Action    Action
	Size      uint64 // bytes that the operation moves
	Number    uint64 // of the operation, as the rule counts
}

// Recorder keeps events in memory until a reader collects them. A full recorder loses new events
// and counts them.
type Recorder struct{ events *recorder.Recorder[Event] }

// MaxEvents limits the size of a Recorder.
const MaxEvents = 1 << 24

// NewRecorder returns a recorder for at least the given number of events. It fails with
// status.InvalidValue unless that is 1 to MaxEvents.
func NewRecorder(events int) (*Recorder, error) {
	if events < 1 || events > MaxEvents {
		return nil, status.Errorf(status.InvalidValue,
			"a recorder of %d events: the number is 1 to %d", events, MaxEvents)
	}
	return &Recorder{events: recorder.New[Event](events)}, nil
}

// Collect fills events with recorded ones, in order, and returns their number. One goroutine at a
// time may call it. A nil Recorder has none.
func (r *Recorder) Collect(events []Event) int {
	if r == nil {
		return 0
	}
	return r.events.Collect(events)
}

// Lost returns how many events did not fit.
func (r *Recorder) Lost() uint64 {
	if r == nil {
		return 0
	}
	return r.events.Lost()
}
