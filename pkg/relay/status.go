// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/zc-relay/zc-relay/internal/printable"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/relay/internal/targets"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// ChannelStatus is the state of a channel at one moment: what the status of the relay shows of it,
// from which metrics and the list of sessions are made, too.
type ChannelStatus struct {
	// FullName is the ChannelID as text.
	FullName string `json:"name"`
	ChannelID
	// Address is where clients connect; empty while they cannot. Reason says why not.
	Address string `json:"address,omitempty"`
	ListenStatus
	// Target is the target that serves new sessions or was the last to do so, the first one if none
	// has, and invalid while its host cannot be looked up; Link is the connection to it.
	Target netip.AddrPort `json:"target"`
	Volume string         `json:"volume"`
	// VolumeSize and VolumeBlockSize describe the volume, in bytes, as the target has said last; 0
	// if it never has.
	VolumeSize      uint64     `json:"volume_size_bytes,omitempty"`
	VolumeBlockSize uint32     `json:"volume_block_size_bytes,omitempty"`
	Link            LinkStatus `json:"link"`
	// Targets holds all targets, in the order of the configuration. TargetMoves counts how often
	// the channel has moved from one to another.
	Targets     []TargetStatus `json:"targets,omitempty"`
	TargetMoves uint64         `json:"target_moves"`
	// MemoryPath is how the target reaches the memory of the last session's client, and
	// MemoryPathReason why no better way works, or none (PathNone); empty until there was one, or
	// if this is the best.
	MemoryPath       MemoryPath `json:"memory_path,omitempty"`
	MemoryPathReason string     `json:"memory_path_reason,omitempty"`
	Limits           Limits     `json:"-"`
	// Sessions is the number of open sessions. SessionsAccepted and SessionsRefused count since the
	// start. Clients rejected by the Comch server itself are not included.
	Sessions         int    `json:"sessions_open"`
	SessionsAccepted uint64 `json:"sessions_total"`
	SessionsRefused  uint64 `json:"sessions_refused"`
	QoS              QoS    `json:"qos,omitzero"`
	// ExportedBytes is the client memory that the open sessions export.
	ExportedBytes uint64 `json:"exported_bytes"`
	// Retiring reports that the channel has been removed from the configuration and waits for its
	// sessions to end.
	Retiring     bool            `json:"retiring"`
	OpenSessions []SessionStatus `json:"sessions"`
	// Queues sums up Counters; nil before ReadCounters.
	Queues []datapath.QueueStatus `json:"queues"`
	// Counters holds the counters of the channel's queues, and Clients the counts of its clients by
	// name, as far as Config.CountedClients allows.
	Counters *datapath.CounterSet    `json:"-"`
	Clients  []datapath.ClientCounts `json:"-"`
	// OwnWorkers is the number of workers that serve this channel only.
	OwnWorkers int `json:"-"`
}

// ReadCounters completes the status by what the counters of the channel and its sessions add up to,
// as it is now. That takes longer than all else, so it is left to those who show it.
func (c *ChannelStatus) ReadCounters() {
	c.Queues = c.Counters.Status()
	for i := range c.OpenSessions {
		s := &c.OpenSessions[i]
		s.Operations = s.Counters.Total().Operations()
	}
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
	ID uint64 `json:"id"`
	// ClientPID and ClientUID are the client's process and its user, unless ClientUnknown: then it
	// is on a host across the PCIe bus.
	ClientPID     int    `json:"client_pid"`
	ClientUID     uint32 `json:"client_uid"`
	ClientUnknown bool   `json:"client_unknown,omitempty"`
	// ClientName is the name that the client has given itself, as one printable line; "" if it has
	// none yet.
	ClientName string    `json:"client_name,omitempty"`
	Opened     time.Time `json:"opened_at"`
	// Queues are the queues created so far.
	Queues []QueueStatus `json:"queues"`
	// Operations sums up Counters; nil before ReadCounters.
	Operations map[string]datapath.Operation `json:"operations"`
	// Counters holds the counters of the session's queues.
	Counters *datapath.CounterSet `json:"-"`
	// Unreleased means that the session has ended, but is not released: the relay could not yet
	// take away the target's access to the client's memory, or close the queues that remain, or the
	// target has not finished changes of the session. UnreleasedReason says what has failed last.
	Unreleased       bool   `json:"unreleased,omitempty"`
	UnreleasedReason string `json:"unreleased_reason,omitempty"`
}

// QueueStatus is the state of a session's queue at one moment.
type QueueStatus struct {
	Index    int `json:"index"`
	Depth    int `json:"depth"`
	InFlight int `json:"in_flight"` // IOs without a response from the target
	// Throttled is how long rate limits have made IOs wait.
	Throttled time.Duration `json:"throttled_ns"`
	// Transport is the RDMA transport of the queue's data, for instance "iwarp"; empty until the
	// queue is connected.
	Transport string `json:"transport,omitempty"`
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
		FullName: c.name, ChannelID: c.id, Address: c.address(), ListenStatus: c.listenStatus(),
		Volume: settings.Volume,
		Limits: settings.Limits, QoS: settings.QoS, Retiring: c.isRemoved(),
		Counters: c.counters, ExportedBytes: uint64(c.exported.Load()),
		SessionsAccepted: c.accepted.Load(), SessionsRefused: c.rejected.Load(),
	}
	if s.LastError != nil {
		s.Reason = printable.Line(s.LastError.Error(), maxReasonLength)
	}
	if taken := c.path.Load(); taken != nil {
		s.MemoryPath, s.MemoryPathReason = taken.path, taken.reason
	}
	s.Clients = c.relay.clientCounters.Counts(c.name)
	var serving int
	s.Targets, serving, s.TargetMoves = c.targets.Status()
	if serving < len(s.Targets) {
		s.Target, s.Link = s.Targets[serving].Address, s.Targets[serving].Link
		s.VolumeSize, s.VolumeBlockSize = s.Link.Volume.Size, s.Link.Volume.BlockSize
	}
	s.OwnWorkers = len(c.ownWorkers())
	open := c.openSessions()
	s.OpenSessions = make([]SessionStatus, len(open))
	for i, session := range open {
		s.OpenSessions[i] = session.status()
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
	peer := s.connection.Peer()
	now := SessionStatus{
		ID: s.id, ClientPID: peer.PID, ClientUID: peer.UID, ClientUnknown: !peer.Known,
		Opened: s.opened.UTC(), Queues: queues, Counters: &s.counters,
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now.ClientName = s.name
	if s.unreleased != nil {
		now.Unreleased = true
		now.UnreleasedReason = printable.Line(s.unreleased.Error(), maxReasonLength)
	}
	return now
}

// maxReasonLength keeps the reason why something does not work readable.
const maxReasonLength = 1024
