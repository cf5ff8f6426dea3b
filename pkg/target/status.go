package target

import (
	"cmp"
	"slices"
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// SessionStatus is the state of a session at one moment.
type SessionStatus struct {
	// ID is the session's number in the log.
	ID     uint64
	Opened time.Time
	Relay  string // address of the relay
	Volume string // empty until the relay has opened it
	Queues int
}

// OpenSessions returns the state of all sessions, oldest first. It may be called concurrently.
func (t *Target) OpenSessions() []SessionStatus {
	sessions := t.admission.open()
	all := make([]SessionStatus, len(sessions))
	for i, s := range sessions {
		all[i] = SessionStatus{ID: s.id, Opened: s.opened, Relay: s.peer,
			Volume: t.exports.chosen(s)}
		s.mu.Lock()
		all[i].Queues = len(s.lanes)
		s.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b SessionStatus) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// EndSession starts to end a session, because an administrator wants it to end, and returns. The
// relay may open another one. It fails with status.NotFound if there is no such session.
func (t *Target) EndSession(id uint64) error {
	for _, s := range t.admission.open() {
		if s.id == id {
			s.cancel(status.Errorf(status.Shutdown, "an administrator has ended the session"))
			return nil
		}
	}
	return status.Errorf(status.NotFound, "there is no session %d", id)
}
