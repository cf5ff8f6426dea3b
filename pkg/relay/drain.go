package relay

import (
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// DrainStatus is how far a relay has been drained.
type DrainStatus struct {
	// Draining means that no new sessions are taken, since Since.
	Draining bool
	Since    time.Time
	// Sessions are those that are still open.
	Sessions int
}

var errDraining = status.Errorf(status.Shutdown, "the relay is being drained: it takes no new sessions")

// Drain makes the relay take no new sessions, and not ready, until Resume.
// Clients that connect are told why. Open sessions go on; DrainStatus tells
// when they have ended.
func (r *Relay) Drain() {
	now := time.Now()
	if r.draining.CompareAndSwap(nil, &now) {
		r.log.Warn("draining: no new sessions are taken")
		r.tellReadiness()
	}
}

// Resume ends what Drain began.
func (r *Relay) Resume() {
	if r.draining.Swap(nil) != nil {
		r.log.Warn("new sessions are taken again")
		r.tellReadiness()
	}
}

// DrainStatus tells how far the relay has been drained.
func (r *Relay) DrainStatus() DrainStatus {
	s := DrainStatus{Sessions: r.Sessions()}
	if since := r.draining.Load(); since != nil {
		s.Draining, s.Since = true, *since
	}
	return s
}

// admit counts a new session, unless the relay takes none.
func (r *Relay) admit() error {
	if r.draining.Load() != nil {
		return errDraining
	}
	if most := r.maxSessions.Load(); r.sessionCount.Add(1) > most {
		r.sessionCount.Add(-1)
		return status.Errorf(status.Full, "the relay has its maximum of %d sessions", most)
	}
	return nil
}
