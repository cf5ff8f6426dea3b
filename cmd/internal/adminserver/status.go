package adminserver

import (
	"math"
	"time"

	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/fault"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
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

	Workers []Worker `json:"workers"`
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

// Worker is a data-path thread.
type Worker struct {
	Index       int    `json:"index"`
	CPU         *int   `json:"cpu"` // null if the thread is not pinned
	Queues      int    `json:"queues"`
	Hits        uint64 `json:"poll_hits"`
	Misses      uint64 `json:"poll_misses"`
	Sleeps      uint64 `json:"sleeps"`
	LateWakeups uint64 `json:"late_wakeups"`
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
	Retiring bool      `json:"retiring"`
	Sessions []Session `json:"sessions"`
	Queues   []Queue   `json:"queues"`
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
	Operations map[string]Operation `json:"operations"`
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
	Holder   string  `json:"holder,omitempty"`
	HolderID string  `json:"holder_id,omitempty"`
	Queues   []Queue `json:"queues"`
}

// Queue sums up all queues with one index, over all sessions so far.
type Queue struct {
	Index        int               `json:"index"`
	InFlight     int64             `json:"in_flight"`
	BackPressure map[string]uint64 `json:"back_pressure"`
	// Throttled is how long rate limits have made IOs wait, by whose limits: "channel" or
	// "session".
	Throttled  map[string]uint64    `json:"throttled_ns,omitempty"`
	Operations map[string]Operation `json:"operations"`
}

// Operation counts the IOs of one kind.
type Operation struct {
	Succeeded uint64            `json:"succeeded"`
	Failed    map[string]uint64 `json:"failed"` // by symbolic code
	Bytes     uint64            `json:"bytes"`
	Latency   Latency           `json:"latency"`
}

// Latency is the distribution of all latencies since the start. Percentiles are upper bounds of
// histogram buckets that are 9 % wide; nil if there are no latencies.
type Latency struct {
	Sum  uint64  `json:"sum_ns"` // of all IOs, including failed ones
	Mean *uint64 `json:"mean_ns"`
	P50  *uint64 `json:"p50_ns"`
	P99  *uint64 `json:"p99_ns"`
	P999 *uint64 `json:"p99_9_ns"`
}

// Workers describes data-path workers.
func Workers(workers []*datapath.Worker) []Worker {
	all := make([]Worker, len(workers))
	for i, w := range workers {
		stats := w.Stats()
		all[i] = Worker{
			Index: i, Queues: w.Lanes(), Hits: stats.Hits, Misses: stats.Misses,
			Sleeps: stats.Sleeps, LateWakeups: stats.LateWakeups,
		}
		if cpu := w.CPU(); cpu != datapath.NoCPU {
			all[i].CPU = &cpu
		}
	}
	return all
}

// Faults describes the rules of an injector, which may be nil.
func Faults(injector *fault.Injector) []Fault {
	var all []Fault
	for _, r := range injector.Rules() {
		all = append(all, Fault{Rule: r.Rule.String(), Operations: r.Seen, Matches: r.Matches})
	}
	return all
}

// Queues describes the counters of queues.
func Queues(counters *datapath.CounterSet) []Queue {
	counts := counters.Queues()
	all := make([]Queue, len(counts))
	for i := range counts {
		all[i] = queueOf(&counts[i])
	}
	return all
}

func queueOf(counts *datapath.QueueCounts) Queue {
	q := Queue{
		Index: counts.Queue, InFlight: counts.InFlight,
		BackPressure: make(map[string]uint64), Operations: Operations(counts),
	}
	for cause := range datapath.BackPressureCount {
		if n := counts.BackPressure(cause); n > 0 {
			q.BackPressure[cause.String()] = n
		}
	}
	for level := range datapath.ThrottleLevelCount {
		if d := counts.Throttled(level); d > 0 {
			if q.Throttled == nil {
				q.Throttled = make(map[string]uint64)
			}
			q.Throttled[level.String()] = uint64(d)
		}
	}
	return q
}

// Operations describes what counts hold of each operation that was requested.
func Operations(counts *datapath.QueueCounts) map[string]Operation {
	all := make(map[string]Operation)
	for operation := range iomsg.OperationCount {
		if counts.Total(operation) > 0 {
			all[operation.String()] = operationOf(counts, operation)
		}
	}
	return all
}

func operationOf(counts *datapath.QueueCounts, operation iomsg.Operation) Operation {
	o := Operation{
		Succeeded: counts.IO(operation, status.Success), Bytes: counts.Bytes(operation),
		Failed: make(map[string]uint64), Latency: latencyOf(counts.Latency(operation)),
	}
	for code := status.Success + 1; int(code) < status.CodeCount; code++ {
		if n := counts.IO(operation, code); n > 0 {
			o.Failed[code.String()] = n
		}
	}
	return o
}

func latencyOf(latency *datapath.Latency) Latency {
	var count uint64
	for _, n := range latency.Buckets {
		count += n
	}
	if count == 0 {
		return Latency{}
	}
	return Latency{
		Sum: latency.SumNs, Mean: new(latency.SumNs / count),
		P50: percentileNs(latency, count, 0.5), P99: percentileNs(latency, count, 0.99),
		P999: percentileNs(latency, count, 0.999),
	}
}

// percentileNs returns the upper bound of the bucket that holds the percentile. For the last
// bucket, which has none, it returns the lower bound.
func percentileNs(latency *datapath.Latency, count uint64, part float64) *uint64 {
	rank := uint64(math.Ceil(part * float64(count)))
	var below uint64
	bucket := 0
	for ; bucket < datapath.LatencyBuckets-2; bucket++ {
		if below += latency.Buckets[bucket]; below >= rank {
			break
		}
	}
	const nanosecondsPerSecond = 1e9
	return new(uint64(datapath.LatencyBound(bucket) * nanosecondsPerSecond))
}
