// SPDX-License-Identifier: Apache-2.0

package benchsuite

import (
	"fmt"
	"slices"
	"strings"

	"github.com/zc-relay/zc-relay/internal/size"
)

// Case holds the runs of a workload on a system.
type Case struct {
	System   string   `json:"system"`
	Workload Workload `json:"workload"`
	Runs     []Run    `json:"runs"`
}

// Workload is what a system is asked to do. Fields that do not apply to a system are 0 or empty.
// Workloads with equal fields are equal.
type Workload struct {
	Pattern    Pattern `json:"rw"`
	BlockSize  uint32  `json:"block_size_bytes"`
	QueueDepth int     `json:"queue_depth"` // of each queue
	Queues     int     `json:"queues"`      // of each session
	Sessions   int     `json:"sessions"`
	Poll       string  `json:"poll"`
	CRC        bool    `json:"crc"`
	Volume     string  `json:"volume"` // kind of volume: memory, file, …
	// Comch is the provider of relay and initiator, and Isolation that of the channel; "" means the
	// default.
	Comch     string `json:"comch,omitempty"`
	Isolation string `json:"isolation,omitempty"`
	// RDMA is the provider between relay and target; "" means iwarp.
	RDMA string `json:"rdma,omitempty"`
	// Condition is anything else of note, such as another load at the same time.
	Condition string `json:"condition,omitempty"`
}

// The defaults, which the name of a workload omits.
const (
	defaultPoll   = "adaptive"
	defaultVolume = "memory"
)

// String names the workload on one line: pattern, block size and depth, and whatever differs from
// the defaults.
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
	if w.Comch != "" {
		parts = append(parts, "comch="+w.Comch)
	}
	parts = append(parts, w.RDMA, w.Isolation, w.Condition)
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), " ")
}

// Run holds the measurements of one run.
type Run struct {
	IOPS           float64 `json:"iops"`
	BytesPerSecond uint64  `json:"bytes_per_second"`
	// LatencyNs is nil if the system does not report latencies.
	LatencyNs *Latency `json:"latency_ns"`
}

// Latency holds the latencies of a run's requests in nanoseconds. Values that the system does not
// report are nil.
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

// Quantity is a quantity that runs measure.
type Quantity int

// The quantities.
const (
	IOPS Quantity = iota
	BytesPerSecond
	P50
	P90
	P99
	P999
	P9999
	Max
	quantityCount
)

var quantityNames = [quantityCount]string{"iops", "bytes_per_second", "p50_ns", "p90_ns", "p99_ns",
	"p99_9_ns", "p99_99_ns", "max_ns"}

// String returns the name in documents.
func (q Quantity) String() string { return quantityNames[q] }

// Of returns the quantity of a run, and false if the run does not report it.
func (q Quantity) Of(r *Run) (float64, bool) {
	switch q {
	case IOPS:
		return r.IOPS, true
	case BytesPerSecond:
		return float64(r.BytesPerSecond), true
	}
	if r.LatencyNs == nil {
		return 0, false
	}
	l := r.LatencyNs
	ns := map[Quantity]*int64{P50: l.P50, P90: l.P90, P99: l.P99, P999: l.P999, P9999: l.P9999,
		Max: l.Max}[q]
	if ns == nil {
		return 0, false
	}
	return float64(*ns), true
}

// Values returns the quantity of every run that reports it.
func (c *Case) Values(q Quantity) []float64 {
	var values []float64
	for i := range c.Runs {
		if value, ok := q.Of(&c.Runs[i]); ok {
			values = append(values, value)
		}
	}
	return values
}

// Median returns the median of the quantity over all runs, and false if none reports it.
func (c *Case) Median(q Quantity) (float64, bool) {
	values := c.Values(q)
	return Median(values), len(values) > 0
}

// Median returns the median of values, 0 if there are none.
func Median(values []float64) float64 {
	n := len(values)
	if n == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// Spread returns the distance between the lowest and the highest value, divided by the median; 0 if
// the median is 0.
func Spread(values []float64) float64 {
	middle := Median(values)
	if middle == 0 {
		return 0
	}
	return (slices.Max(values) - slices.Min(values)) / middle
}

// Ratio divides the quantity of each of the case's runs by that of the other case's neighbouring
// run. It returns the median and the spread of these ratios. A machine whose speed varies affects
// both runs of a pair alike.
func (c *Case) Ratio(other *Case, q Quantity) (ratio, spread float64) {
	var ratios []float64
	for i := range min(len(c.Runs), len(other.Runs)) {
		a, ok := q.Of(&c.Runs[i])
		b, otherOK := q.Of(&other.Runs[i])
		if ok && otherOK && b > 0 {
			ratios = append(ratios, a/b)
		}
	}
	return Median(ratios), Spread(ratios)
}
