package relay

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/relay/internal/targets"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// ChannelStatus is the state of a channel at one moment.
type ChannelStatus struct {
	ChannelID
	// Address is where clients connect; empty while they cannot. Listen says why not.
	Address string
	Listen  ListenStatus
	// Target is the target that serves new sessions or was the last to do so, the first one if none
	// has, and invalid while its host cannot be looked up; Link is the connection to it.
	Target netip.AddrPort
	Volume string
	Link   LinkStatus
	// Targets holds all targets, in the order of the configuration. TargetMoves counts how often
	// the channel has moved from one to another.
	Targets     []TargetStatus
	TargetMoves uint64
	// MemoryPath is how the target reaches the memory of the last session's client, and
	// MemoryPathReason why no better way works, or none (PathNone); empty until there was one, or
	// if this is the best.
	MemoryPath       MemoryPath
	MemoryPathReason string
	Limits           Limits
	QoS              QoS
	// Retiring reports that the channel has been removed from the configuration and waits for its
	// sessions to end.
	Retiring bool
	// OwnWorkers is the number of workers that serve this channel only.
	OwnWorkers int

	// Counters holds the counters of the channel's queues, and Clients the counts of its clients by
	// name, as far as Config.CountedClients allows.
	Counters *datapath.CounterSet
	Clients  []datapath.ClientCounts
	// Sessions is the number of open sessions, ExportedBytes the client memory that they export.
	Sessions      int
	ExportedBytes uint64
	OpenSessions  []SessionStatus
	// SessionsAccepted and SessionsRefused count since the start. Clients rejected by the Comch
	// server itself are not included.
	SessionsAccepted uint64
	SessionsRefused  uint64
}

// TargetStatus is the state of one of a channel's targets at one moment.
type TargetStatus = targets.Status

// LinkStatus describes a channel's standing connection to one of its targets.
type LinkStatus = targets.LinkStatus

// LinkState is the state of a channel's standing connection to one of its targets.
type LinkState = targets.LinkState

// The states of a link; package targets says what they mean.
const (
	LinkConnecting = targets.LinkConnecting
	LinkReady      = targets.LinkReady
	LinkWaiting    = targets.LinkWaiting
	LinkGivenUp    = targets.LinkGivenUp
	LinkStandBy    = targets.LinkStandBy
)

// SessionStatus is the state of a session at one moment.
type SessionStatus struct {
	// ID is the session's number in the log.
	ID     uint64
	Client comch.Peer
	// Name is the name that the client has given itself, as one printable line; "" if it has none
	// yet.
	Name   string
	Opened time.Time
	// Unreleased is why the session has ended, but is not released: the relay could not yet take
	// away the target's access to the client's memory, or close the queues that remain, or the
	// target has not finished changes of the session. It is nil as long as the session has not
	// ended.
	Unreleased error
	// Queues are the queues created so far.
	Queues []QueueStatus
	// Counts holds the counts of all queues together.
	Counts *datapath.QueueCounts
}

// QueueStatus is the state of a session's queue at one moment.
type QueueStatus struct {
	Index    int
	Depth    int
	InFlight int // IOs without a response from the target
	// Throttled is how long rate limits have made IOs wait.
	Throttled time.Duration
	// Transport is the RDMA transport of the queue's data, for instance "iwarp"; empty until the
	// queue is connected.
	Transport string
}

// DrainStatus is the progress of a drain.
type DrainStatus struct {
	// Draining reports that the relay has rejected new sessions since Since.
	Draining bool
	Since    time.Time
	// Sessions is the number of open sessions.
	Sessions int
}

// DrainStatus returns the progress of Drain.
func (r *Relay) DrainStatus() DrainStatus {
	s := DrainStatus{Sessions: r.Sessions()}
	if since := r.draining.Load(); since != nil {
		s.Draining, s.Since = true, *since
	}
	return s
}

// Sessions returns the number of connected clients.
func (r *Relay) Sessions() int { return int(r.sessionCount.Load()) }

// SessionsTotal returns the number of clients that have connected since the start.
func (r *Relay) SessionsTotal() uint64 { return r.sessionID.Load() }

// Workers returns the shared data-path workers and those of the channels, for metrics.
func (r *Relay) Workers() []*datapath.Worker {
	var workers []*datapath.Worker
	if r.pool != nil {
		workers = append(workers, r.pool.Workers()...)
	}
	for _, c := range r.snapshot() {
		workers = append(workers, c.ownWorkers()...)
	}
	return workers
}

// Channels returns the state of all channels, in the order of the configuration.
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
	s := ChannelStatus{
		ChannelID: c.id, Address: c.address(), Listen: c.listenStatus(), Volume: settings.Volume,
		Limits: settings.Limits, QoS: settings.QoS, Retiring: c.isRemoved(),
		Counters: c.counters, ExportedBytes: uint64(c.exported.Load()),
		SessionsAccepted: c.accepted.Load(), SessionsRefused: c.rejected.Load(),
	}
	if taken := c.path.Load(); taken != nil {
		s.MemoryPath, s.MemoryPathReason = taken.path, taken.reason
	}
	s.Clients = c.relay.clientCounters.Counts(c.id.String())
	var serving int
	s.Targets, serving, s.TargetMoves = c.targets.Status()
	if serving < len(s.Targets) {
		s.Target, s.Link = s.Targets[serving].Address, s.Targets[serving].Link
	}
	s.OwnWorkers = len(c.ownWorkers())
	for _, session := range c.openSessions() {
		s.OpenSessions = append(s.OpenSessions, session.status())
	}
	slices.SortFunc(s.OpenSessions, func(a, b SessionStatus) int { return cmp.Compare(a.ID, b.ID) })
	s.Sessions = len(s.OpenSessions)
	return s
}

// EndSession starts to end a session, because an administrator wants it to end, and returns. The
// client may open another one. It fails with status.NotFound if there is no such session.
func (r *Relay) EndSession(id uint64) error {
	for _, c := range r.snapshot() {
		for _, s := range c.openSessions() {
			if s.id == id {
				s.cancel(status.Errorf(status.Shutdown, "an administrator has ended the session"))
				return nil
			}
		}
	}
	return status.Errorf(status.NotFound, "there is no session %d", id)
}

func (s *session) status() SessionStatus {
	lanes := s.openLanes()
	queues := make([]QueueStatus, len(lanes))
	for i, lane := range lanes {
		queues[i] = QueueStatus{Index: i, Depth: lane.Depth(), InFlight: lane.InFlight(),
			Throttled: lane.Throttled(), Transport: lane.Transport()}
	}
	s.mu.Lock()
	unreleased := s.unreleased
	name := s.name
	s.mu.Unlock()
	return SessionStatus{
		ID: s.id, Client: s.connection.Peer(), Name: name, Opened: s.opened,
		Unreleased: unreleased, Queues: queues, Counts: s.counters.Total(),
	}
}
