package target

import (
	"cmp"
	"slices"
	"time"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// SessionStatus is the state of a session at one moment.
type SessionStatus struct {
	// ID is the session's number in the log.
	ID     uint64
	Opened time.Time
	Relay  string // address of the relay
	Volume string // empty until the relay has opened it
	// Client is the program that uses the session, and HolderID names its owner for Preempt; both
	// are empty until the session has the volume open.
	Client   string
	HolderID controlmsg.HolderID
	Queues   int
	// Counts holds the counts of all queues together.
	Counts *datapath.QueueCounts
	// Transports holds the RDMA transport of each queue's data; empty for a queue that is not
	// connected.
	Transports []string
}

// OpenSessions returns the state of all sessions, oldest first. It may be called concurrently.
func (t *Target) OpenSessions() []SessionStatus {
	sessions := t.admission.open()
	all := make([]SessionStatus, len(sessions))
	for i, s := range sessions {
		all[i] = SessionStatus{ID: s.id, Opened: s.opened, Relay: s.peer,
			Counts: s.counters.Total()}
		t.exports.describeSession(s, &all[i])
		s.mu.Lock()
		all[i].Queues = len(s.lanes)
		for _, lane := range s.lanes {
			all[i].Transports = append(all[i].Transports, lane.Transport())
		}
		s.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b SessionStatus) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// ConnectedQueues counts the queues of open sessions that are connected to their relay, by RDMA
// transport. It may be called concurrently.
func (t *Target) ConnectedQueues() map[string]int {
	counts := make(map[string]int)
	for _, s := range t.OpenSessions() {
		for _, transport := range s.Transports {
			if transport != "" {
				counts[transport]++
			}
		}
	}
	return counts
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
