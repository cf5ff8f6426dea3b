package client

import "time"

// Reconnections is what became of the sessions of a volume.
type Reconnections struct {
	// Count is how often the volume was reopened.
	Count int
	// Outage is how long there was no session, all in all, and
	// LongestOutage the longest of these times.
	Outage        time.Duration
	LongestOutage time.Duration
	// LostWrites is how many writes had been acknowledged, and not flushed,
	// when the target restarted: they may be lost. A flush that fails with
	// ErrWritesLost tells of them.
	LostWrites uint64
}

// history is what has happened so far.
type history struct {
	past  Reconnections
	since time.Time // of the outage that goes on
}

// Reconnections tells how often the volume was reopened, and for how long it
// was not there. An outage that goes on counts up to now.
func (v *Volume) Reconnections() Reconnections {
	v.mu.Lock()
	r := v.history.past
	if since := v.history.since; !since.IsZero() {
		r.add(time.Since(since))
	}
	v.mu.Unlock()
	r.LostWrites = v.writes.lostCount()
	return r
}

func (r *Reconnections) add(outage time.Duration) {
	r.Outage += outage
	r.LongestOutage = max(r.LongestOutage, outage)
}

func (v *Volume) noteLoss() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.history.since = time.Now()
}

func (v *Volume) noteReturn() (outage time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	outage = time.Since(v.history.since)
	v.history.since = time.Time{}
	v.history.past.Count++
	v.history.past.add(outage)
	return outage
}
