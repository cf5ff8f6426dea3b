package target

import (
	"maps"
	"slices"
	"time"
)

// SetReleaseTimeout replaces the time that the release of a session may take. Run must not have
// been called.
func (t *Target) SetReleaseTimeout(timeout time.Duration) { t.releaseTimeout = timeout }

// SetAnswerTimeout replaces the time that a device may keep a request of a session that has ended.
// Run must not have been called.
func (t *Target) SetAnswerTimeout(timeout time.Duration) { t.answerTimeout = timeout }

// ReservedMemory returns how many bytes count towards Config.StagingLimit.
func (t *Target) ReservedMemory() int64 { return t.memory.Load() }

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
