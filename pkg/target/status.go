// SPDX-License-Identifier: Apache-2.0

package target

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// VolumeStatus is the state of a volume that the target serves, under one of its names, at one
// moment: what the status of the target shows of it, from which metrics are made, too.
type VolumeStatus struct {
	Name      string `json:"name"`
	UUID      string `json:"uuid"`
	Size      uint64 `json:"size_bytes"`
	BlockSize uint32 `json:"block_size_bytes"`
	ReadOnly  bool   `json:"read_only"`
	// State is the state that the volume entered at Since. Reason says why it is not serving.
	State  volume.State `json:"state"`
	Since  time.Time    `json:"since"`
	Reason string       `json:"reason,omitempty"`
	// Attempt counts the attempts to open a volume that cannot be opened, and NextAttempt is when
	// the next one begins.
	Attempt     int       `json:"attempt,omitempty"`
	NextAttempt time.Time `json:"next_attempt_at,omitzero"`
	// Holder is the client that has the volume open exclusively, and HolderID names it for Preempt;
	// both are empty before SetUse.
	Holder   string `json:"holder,omitempty"`
	HolderID string `json:"holder_id,omitempty"`
	// Queues sums up Counters; nil before ReadCounters.
	Queues []datapath.QueueStatus `json:"queues"`
	// Counters holds the counters of the volume's queues; nil if it is not offered. Clients holds
	// the counts of its clients by name, as far as Config.CountedClients allows, and Failures the
	// requests that it has failed.
	Counters *datapath.CounterSet    `json:"-"`
	Clients  []datapath.ClientCounts `json:"-"`
	Failures []volume.Failure        `json:"-"`
}

// SetUse completes the status by who has the volume open.
func (v *VolumeStatus) SetUse(use Use) {
	v.Holder, v.HolderID = use.Holder, use.HolderID.String()
}

// ReadCounters completes the status by what the counters of the volume add up to, as it is now.
func (v *VolumeStatus) ReadCounters() {
	v.Queues = []datapath.QueueStatus{}
	if v.Counters != nil {
		v.Queues = v.Counters.Status()
	}
}

// Volumes returns the state of the volumes that the target serves, sorted by name. It may be called
// concurrently.
func (t *Target) Volumes() []VolumeStatus {
	offers := t.offers.all()
	all := make([]VolumeStatus, 0, len(offers))
	for _, name := range slices.Sorted(maps.Keys(offers)) {
		offer := offers[name]
		info, now := offer.Volume.Info(), offer.Volume.Status()
		v := VolumeStatus{
			Name: name, UUID: info.UUID.String(), Size: info.Size, BlockSize: info.BlockSize,
			ReadOnly: info.ReadOnly || offer.ReadOnly, State: now.State, Since: now.Since.UTC(),
			Reason: now.ReasonText(), Attempt: now.Attempt, Counters: offer.counters,
			Clients: t.clientCounters.Counts(name), Failures: offer.Volume.Failures(),
		}
		if !now.NextTry.IsZero() {
			v.NextAttempt = now.NextTry.UTC()
		}
		all = append(all, v)
	}
	return all
}

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
	// Counters holds the counters of the session's queues.
	Counters *datapath.CounterSet
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
			Counters: &s.counters}
		t.offers.describeSession(s, &all[i])
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
