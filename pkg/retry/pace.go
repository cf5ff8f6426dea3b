package retry

import (
	"sync"
	"time"
)

// Pace bounds how often something happens: up to a burst at once, and once per interval on average.
// Its methods may be called concurrently.
type Pace struct {
	interval time.Duration

	mu   sync.Mutex
	full time.Time // when a whole burst is possible again
}

// NewPace returns a pace of one occurrence per interval.
func NewPace(interval time.Duration) *Pace { return &Pace{interval: interval} }

// Reserve reserves one occurrence, and returns how long to wait for it. If that is longer than
// most, it reserves nothing and returns false.
func (p *Pace) Reserve(now time.Time, burst int, most time.Duration) (time.Duration, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	full := p.full
	if full.Before(now) {
		full = now
	}
	wait := max(0, full.Sub(now)-time.Duration(burst-1)*p.interval)
	if wait > most {
		return wait, false
	}
	p.full = full.Add(p.interval)
	return wait, true
}

// Cancel returns a reservation that was not used.
func (p *Pace) Cancel() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.full = p.full.Add(-p.interval)
}

// Turns admits who comes at a rate. Who comes too early is told a turn of its own, so that those
// who were early do not come back at once. A turn is a promise to nobody: whoever comes when the
// rate allows it is admitted. The methods may be called concurrently.
type Turns struct {
	burst    int
	admitted *Pace
	told     *Pace
	longest  time.Duration
}

// burstsPerSecond is the part of a second's newcomers that Turns admits at once after a rest: one
// in so many.
const burstsPerSecond = 5

// NewTurns returns turns at a rate, which must be positive, none of them later than longest.
func NewTurns(perSecond int, longest time.Duration) *Turns {
	interval := time.Second / time.Duration(perSecond)
	return &Turns{burst: max(perSecond/burstsPerSecond, 1), admitted: NewPace(interval),
		told: NewPace(interval), longest: longest}
}

// Admit counts a newcomer that is admitted now, and returns 0. Otherwise it returns how long the
// newcomer should wait until its turn.
func (t *Turns) Admit(now time.Time) (wait time.Duration) {
	next, ok := t.admitted.Reserve(now, t.burst, 0)
	if ok {
		return 0
	}
	turn, ok := t.told.Reserve(now, 1, t.longest)
	if !ok {
		return t.longest
	}
	return min(next+turn, t.longest)
}
