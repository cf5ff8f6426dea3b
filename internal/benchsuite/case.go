package benchsuite

import (
	"fmt"
	"slices"
	"strings"

	"github.com/zc-relay/zc-relay/internal/size"
)

// Case is a workload on a system.
type Case struct {
	System   string   `json:"system"`
	Workload Workload `json:"workload"`
	Runs     []Run    `json:"runs"`
}

// Workload is what a system is asked to do. What does not apply to a system is
// 0 or empty. Workloads are equal if all their fields are.
type Workload struct {
	Pattern    Pattern `json:"rw"`
	BlockSize  uint32  `json:"block_size_bytes"`
	QueueDepth int     `json:"queue_depth"` // of each queue
	Queues     int     `json:"queues"`      // of each session
	Sessions   int     `json:"sessions"`
	Poll       string  `json:"poll"`
	CRC        bool    `json:"crc"`
	Volume     string  `json:"volume"` // what kind of volume: memory, file, …
	// Condition is what else is special, such as another load at the same
	// time.
	Condition string `json:"condition,omitempty"`
}

// What a workload is unless its name says otherwise.
const (
	defaultPoll   = "adaptive"
	defaultVolume = "memory"
)

// String names the workload on one line: pattern, block size and depth, and
// what is not as usual.
func (w Workload) String() string {
	parts := []string{string(w.Pattern)}
	if w.BlockSize > 0 {
		parts = append(parts, size.Bytes(w.BlockSize).String())
	}
	if w.QueueDepth > 0 {
		parts = append(parts, fmt.Sprintf("depth=%d", w.QueueDepth))
	}
	if w.Queues > 1 {
		parts = append(parts, fmt.Sprintf("queues=%d", w.Queues))
	}
	if w.Sessions > 1 {
		parts = append(parts, fmt.Sprintf("sessions=%d", w.Sessions))
	}
	if w.Poll != defaultPoll {
		parts = append(parts, w.Poll)
	}
	if w.CRC {
		parts = append(parts, "crc")
	}
	if w.Volume != defaultVolume {
		parts = append(parts, w.Volume)
	}
	parts = append(parts, w.Condition)
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), " ")
}

// Run is what one run of a case measured.
type Run struct {
	IOPS           float64 `json:"iops"`
	BytesPerSecond uint64  `json:"bytes_per_second"`
	// LatencyNs is nil if the system does not tell any.
	LatencyNs *Latency `json:"latency_ns"`
}

// Latency is that of the requests of a run in nanoseconds; nil is what the
// system does not tell.
type Latency struct {
	Min   *int64 `json:"min"`
	Mean  *int64 `json:"mean"`
	P50   *int64 `json:"p50"`
	P90   *int64 `json:"p90"`
	P99   *int64 `json:"p99"`
	P999  *int64 `json:"p99_9"`
	P9999 *int64 `json:"p99_99"`
	Max   *int64 `json:"max"`
}
