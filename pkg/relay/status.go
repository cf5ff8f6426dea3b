package relay

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/datapath"
)

// ChannelStatus is how a channel stands at one moment.
type ChannelStatus struct {
	ChannelID
	// Address says where clients connect; empty while they cannot.
	Address string
	Target  netip.AddrPort
	Volume  string
	Link    LinkStatus
	Limits  Limits
	// Retiring means that the channel was removed from the configuration and
	// waits for its sessions to end.
	Retiring bool
	// OwnWorkers is the number of workers that serve this channel only.
	OwnWorkers int

	// Counters are those of the channel's queues.
	Counters *datapath.CounterSet
	// Sessions is how many are open, ExportedBytes the client memory that
	// they have exported.
	Sessions      int
	ExportedBytes uint64
	OpenSessions  []SessionStatus
	// SessionsAccepted and SessionsRefused count since the start. Clients
	// that the Comch server itself has turned away are not among them.
	SessionsAccepted uint64
	SessionsRefused  uint64
}

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

// Channels describes all channels, in the order of the configuration.
func (r *Relay) Channels() []ChannelStatus {
	channels := r.snapshot()
	all := make([]ChannelStatus, len(channels))
	for i, c := range channels {
		all[i] = c.status()
	}
	return all
}

func (c *channel) status() ChannelStatus {
	settings := c.settings.Load()
	link, _ := c.link.snapshot()
	s := ChannelStatus{
		ChannelID: c.id, Address: c.address(), Target: settings.Target, Volume: settings.Volume, Link: link, Limits: settings.Limits,
		Counters: c.counters, ExportedBytes: uint64(c.exported.Load()), SessionsAccepted: c.accepted.Load(), SessionsRefused: c.refused.Load(),
	}
	if c.ownPool != nil {
		s.OwnWorkers = len(c.ownPool.Workers())
	}
	s.OpenSessions, s.Retiring = c.sessionStatus(), c.isRetiring()
	s.Sessions = len(s.OpenSessions)
	return s
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

func (s *session) status() SessionStatus {
	lanes := s.lanes.snapshot()
	queues := make([]QueueStatus, len(lanes))
	for i, lane := range lanes {
		queues[i] = QueueStatus{Index: i, Depth: lane.Depth(), InFlight: lane.InFlight()}
	}
	return SessionStatus{ID: s.id, Client: s.connection.Peer(), Opened: s.opened, Queues: queues}
}
