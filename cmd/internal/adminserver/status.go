package adminserver

import (
	"time"

	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/fault"
)

// Schema names the format of the document. Fields may be added within a version;
// docs/status.schema.json describes all of them.
const Schema = "zc-relay.status/1"

// Document is the status of a daemon. Counts start at 0 with the daemon and are never reset.
type Document struct {
	Schema  string    `json:"schema"`
	Program string    `json:"program"` // "zc-relay" or "target"
	Version string    `json:"version"`
	PID     int       `json:"pid"`
	Started time.Time `json:"started_at"`
	Now     time.Time `json:"now"`
	// Ready means that new sessions can be served. Reason explains why not.
	Ready  bool   `json:"ready"`
	Reason string `json:"not_ready_reason,omitempty"`
	// Reload is the latest reload, nil if there was none.
	Reload *Reload `json:"reload,omitempty"`
	// RestartPending holds the keys of the settings whose values in the configuration file take
	// effect with the next start, as of the latest reload.
	RestartPending []string `json:"restart_pending,omitempty"`

	Workers []datapath.WorkerStatus `json:"workers"`
	// Only a relay has Channels, and only a target Volumes.
	Channels []Channel `json:"channels,omitempty"`
	Volumes  []Volume  `json:"volumes,omitempty"`
	// Sessions counts a target's sessions; the sessions of a relay belong to its channels.
	Sessions *SessionCount `json:"sessions,omitempty"`
	// Faults holds the rules of --fault.
	Faults []Fault `json:"faults,omitempty"`
}

// Fault is a rule by which faults are injected.
type Fault struct {
	Rule string `json:"rule"`
	// Operations counts those that the rule considers, Matches those that it has changed or traced.
	Operations uint64 `json:"operations"`
	Matches    uint64 `json:"matches"`
}

// Reload is an attempt to read configuration and certificates again.
type Reload struct {
	Started time.Time `json:"started_at"`
	// Ended is nil during the reload.
	Ended *time.Time `json:"ended_at"`
	// Error explains what the reload could not apply, or why it has not ended.
	Error string `json:"error,omitempty"`
}

// Channel is a Comch service with its targets.
type Channel struct {
	Name        string `json:"name"` // DEVICE/REPRESENTOR/SERVICE
	Device      string `json:"device"`
	Representor string `json:"representor"`
	Service     string `json:"service"`
	Address     string `json:"address,omitempty"`
	// State is a relay.ChannelState, which the channel entered at Since. Reason says why clients
	// cannot connect, Attempt how often the relay has tried to open the channel since they could.
	State       string     `json:"state"`
	Since       time.Time  `json:"since"`
	Reason      string     `json:"reason,omitempty"`
	Attempt     int        `json:"attempt,omitempty"`
	NextAttempt *time.Time `json:"next_attempt_at,omitempty"`
	// Target is the target that serves new sessions or was the last to do so, Link the connection
	// to it.
	Target string `json:"target"`
	Volume string `json:"volume"`
	Link   Link   `json:"link"`
	// Targets holds all targets if there are several, and TargetMoves how often the channel has
	// moved from one to another.
	Targets     []Target `json:"targets,omitempty"`
	TargetMoves uint64   `json:"target_moves"`
	// MemoryPath is how the target reaches the memory of clients (relay.MemoryPath), as the last
	// session has found, and MemoryPathReason why no better way works, or none.
	MemoryPath       string `json:"memory_path,omitempty"`
	MemoryPathReason string `json:"memory_path_reason,omitempty"`
	SessionCount
	Refused uint64 `json:"sessions_refused"`
	// QoS holds the rate limits, nil if there are none.
	QoS *QoS `json:"qos,omitempty"`
	// Exported is the client memory that all sessions have exported, in bytes.
	Exported uint64 `json:"exported_bytes"`
	// Retiring means that the channel was removed from the configuration and waits for its sessions
	// to end.
	Retiring bool                   `json:"retiring"`
	Sessions []Session              `json:"sessions"`
	Queues   []datapath.QueueStatus `json:"queues"`
}

// QoS holds the rate limits of a channel's sessions together, and of each of them. Limits are nil
// if there are none.
type QoS struct {
	Channel *RateLimits `json:"channel,omitempty"`
	Session *RateLimits `json:"session,omitempty"`
}

// RateLimits limits rates; a rate of 0 is not limited. Burst is how long unused rates add up.
type RateLimits struct {
	IOPS      uint32 `json:"iops,omitempty"`
	Bandwidth uint64 `json:"bytes_per_s,omitempty"`
	Burst     uint64 `json:"burst_ns"`
}

// RateLimitsOf describes rate limits; nil if there are none.
func RateLimitsOf(l datapath.RateLimits) *RateLimits {
	if l.IOPS == 0 && l.Bandwidth == 0 {
		return nil
	}
	return &RateLimits{IOPS: l.IOPS, Bandwidth: l.Bandwidth, Burst: uint64(l.Burst)}
}

// Target is one of several targets of a channel.
type Target struct {
	Address string `json:"address"`
	Link    Link   `json:"link"`
}

// Link is a channel's standing connection to a target.
type Link struct {
	// State is "connecting", "ready", "waiting" for the next attempt, "stand-by" if the target
	// waits to take over from another one, or "given-up".
	State string    `json:"state"`
	Since time.Time `json:"since"`
	// Reason explains why the link is not ready.
	Reason string `json:"reason,omitempty"`
	// Attempt is the number of the latest attempt since the target was found to be down or, while
	// waiting, of the next one. MaxAttempts is the limit, nil for none.
	Attempt     int        `json:"attempt"`
	MaxAttempts *int       `json:"max_attempts"`
	NextAttempt *time.Time `json:"next_attempt_at"`
	// Connects and Losses count how often the link was set up and lost, Failures the failed
	// attempts.
	Connects uint64 `json:"connects"`
	Losses   uint64 `json:"losses"`
	Failures uint64 `json:"failures"`
}

// SessionCount counts sessions.
type SessionCount struct {
	Open  int    `json:"sessions_open"`
	Total uint64 `json:"sessions_total"`
}

// Session is a client's use of a channel.
type Session struct {
	ID        uint64 `json:"id"`
	ClientPID int    `json:"client_pid"`
	ClientUID uint32 `json:"client_uid"`
	// ClientUnknown means that the Comch provider does not know the client's process: it is on a
	// host across the PCIe bus.
	ClientUnknown bool `json:"client_unknown,omitempty"`
	// ClientName is the name that the client has given itself; empty if it has none yet.
	ClientName string         `json:"client_name,omitempty"`
	Opened     time.Time      `json:"opened_at"`
	Queues     []SessionQueue `json:"queues"`
	// Operations counts the IOs of all queues of the session.
	Operations map[string]datapath.Operation `json:"operations"`
	// Unreleased means that the session has ended, but that the relay still tries to take away the
	// target's access to the client's memory, or waits until the target has finished its changes.
	// UnreleasedReason says what has failed last.
	Unreleased       bool   `json:"unreleased,omitempty"`
	UnreleasedReason string `json:"unreleased_reason,omitempty"`
}

// SessionQueue is one queue of a session.
type SessionQueue struct {
	Index    int `json:"index"`
	Depth    int `json:"depth"`
	InFlight int `json:"in_flight"`
	// Throttled is how long rate limits have made IOs wait.
	Throttled uint64 `json:"throttled_ns"`
	// Transport is the RDMA transport of the queue's data; empty until the queue is connected.
	Transport string `json:"transport,omitempty"`
}

// Volume is a volume of a target.
type Volume struct {
	Name      string `json:"name"`
	UUID      string `json:"uuid"`
	Size      uint64 `json:"size_bytes"`
	BlockSize uint32 `json:"block_size_bytes"`
	ReadOnly  bool   `json:"read_only"`
	// State is a volume.State, which the volume entered at Since. Reason says why it is not
	// serving.
	State  string    `json:"state"`
	Since  time.Time `json:"since"`
	Reason string    `json:"reason,omitempty"`
	// Attempt counts the attempts to open a volume that cannot be opened, and NextAttempt is when
	// the next one begins.
	Attempt     int        `json:"attempt,omitempty"`
	NextAttempt *time.Time `json:"next_attempt_at,omitempty"`
	// Holder is the client that has the volume open exclusively, and HolderID names it for preempt.
	Holder   string                 `json:"holder,omitempty"`
	HolderID string                 `json:"holder_id,omitempty"`
	Queues   []datapath.QueueStatus `json:"queues"`
}

// Faults describes the rules of an injector, which may be nil.
func Faults(injector *fault.Injector) []Fault {
	var all []Fault
	for _, r := range injector.Rules() {
		all = append(all, Fault{Rule: r.Rule.String(), Operations: r.Seen, Matches: r.Matches})
	}
	return all
}
