package fault

import (
	"sync/atomic"
	"time"

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

// Recorder keeps events in memory until a reader drains it. Any number of threads may record
// concurrently; recording neither locks nor allocates. A full recorder loses new events and counts
// them.
type Recorder struct {
	places   []place
	mask     uint64
	next     atomic.Uint64 // position of the next event to record
	lost     atomic.Uint64
	position uint64 // of the next event to read, for the reader only
}

// place holds every event whose position is its index modulo the number of places. turn is the
// position of the event that may be recorded, or one more than that of the event that may be read.
type place struct {
	turn  atomic.Uint64
	event Event
}

// MaxEvents limits the size of a Recorder.
const MaxEvents = 1 << 24

// NewRecorder returns a recorder for at least the given number of events. It fails with
// status.InvalidValue unless that is 1 to MaxEvents.
func NewRecorder(events int) (*Recorder, error) {
	if events < 1 || events > MaxEvents {
		return nil, status.Errorf(status.InvalidValue,
			"a recorder of %d events: the number is 1 to %d", events, MaxEvents)
	}
	size := 2 // with one place, a recorded event and a free place would look alike
	for size < events {
		size *= 2
	}
	r := &Recorder{places: make([]place, size), mask: uint64(size) - 1}
	for i := range r.places {
		r.places[i].turn.Store(uint64(i))
	}
	return r, nil
}

func (r *Recorder) record(e Event) {
	for {
		position := r.next.Load()
		p := &r.places[position&r.mask]
		switch turn := p.turn.Load(); {
		case turn == position:
			if r.next.CompareAndSwap(position, position+1) {
				p.event = e
				p.turn.Store(position + 1)
				return
			}
		case turn < position: // holds an event that has not been read
			r.lost.Add(1)
			return
		}
		// Another thread was faster.
	}
}

// Drain fills events with recorded ones, in order, and returns their number. One goroutine at a
// time may call it.
func (r *Recorder) Drain(events []Event) int {
	for n := range events {
		p := &r.places[r.position&r.mask]
		if p.turn.Load() != r.position+1 {
			return n
		}
		events[n] = p.event
		p.turn.Store(r.position + uint64(len(r.places)))
		r.position++
	}
	return len(events)
}

// Lost returns how many events did not fit.
func (r *Recorder) Lost() uint64 { return r.lost.Load() }
