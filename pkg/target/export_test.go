package target

import (
	"maps"
	"slices"
	"time"
)

// SetReleaseTimeout replaces the time that the release of a session may take. Run must not have
// been called.
func (t *Target) SetReleaseTimeout(timeout time.Duration) { t.releaseTimeout = timeout }

// StoppedByMessage returns, for each session with a relay of 2.10, a channel that is closed when
// the time begins within which the relay has to end the session.
func (t *Target) StoppedByMessage() (stopped []<-chan struct{}) {
	t.admission.mu.Lock()
	sessions := slices.Collect(maps.Keys(t.admission.sessions))
	t.admission.mu.Unlock()
	for _, s := range sessions {
		if relay, ok := s.relay.(*dialectRelay); ok {
			stopped = append(stopped, relay.Stopped())
		}
	}
	return stopped
}
