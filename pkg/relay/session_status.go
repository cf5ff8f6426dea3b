package relay

import (
	"cmp"
	"slices"
	"time"

	"github.com/zc-relay/zc-relay/pkg/comch"
)

// SessionStatus is how a session stands at one moment.
type SessionStatus struct {
	// ID is the session's number, as in the log.
	ID     uint64
	Client comch.Peer
	Opened time.Time
	// Queues are those that have been made so far.
	Queues []QueueStatus
}

// QueueStatus is one queue of a session.
type QueueStatus struct {
	Index    int
	Depth    int
	InFlight int // IOs that await the target's answer
}

func (s *session) status() SessionStatus {
	lanes := s.lanes.snapshot()
	queues := make([]QueueStatus, len(lanes))
	for i, lane := range lanes {
		queues[i] = QueueStatus{Index: i, Depth: lane.Depth(), InFlight: lane.InFlight()}
	}
	return SessionStatus{ID: s.id, Client: s.connection.Peer(), Opened: s.opened, Queues: queues}
}

// sessionStatus describes the channel's sessions, the oldest first.
func (c *channel) sessionStatus() []SessionStatus {
	var all []SessionStatus
	for _, s := range c.openSessions() {
		all = append(all, s.status())
	}
	slices.SortFunc(all, func(a, b SessionStatus) int { return cmp.Compare(a.ID, b.ID) })
	return all
}
