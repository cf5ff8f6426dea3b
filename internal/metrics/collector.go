// Package metrics exports the data path's counters to Prometheus.
package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Source is a service with data-path workers.
type Source interface {
	Workers() []*datapath.Worker
	Sessions() int
	SessionsTotal() uint64
}

// Collector reads the counters of a source whenever it is scraped. The data
// path is not disturbed: it counts in memory of its own, which is only read.
type Collector struct {
	source Source

	sessions      *prometheus.Desc
	sessionsTotal *prometheus.Desc
	io            *prometheus.Desc
	bytes         *prometheus.Desc
	latency       *prometheus.Desc
	poll          *prometheus.Desc
	sleeps        *prometheus.Desc
	lateWakeups   *prometheus.Desc
}

// NewCollector makes a collector whose metrics begin with prefix, "zc_relay"
// or "zc_target".
func NewCollector(prefix string, source Source) *Collector {
	describe := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(prefix, "", name), help, labels, nil)
	}
	return &Collector{
		source:        source,
		sessions:      describe("sessions", "Sessions that are open now."),
		sessionsTotal: describe("sessions_total", "Sessions that have been opened."),
		io:            describe("io_total", "IOs that have been answered, by operation and result.", "op", "code"),
		bytes:         describe("io_bytes_total", "Bytes that successful IOs have moved, by operation.", "op"),
		latency:       describe("io_latency_seconds", "Time from taking an IO to answering it, by operation.", "op"),
		poll:          describe("poll_total", "Turns of the workers' polling loops that found work (hit) or none (miss).", "outcome"),
		sleeps:        describe("sleeps_total", "Times that a worker slept in the kernel for lack of work."),
		lateWakeups:   describe("late_wakeups_total", "Work that a sleeping worker was not woken for. Anything but 0 is a bug."),
	}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{
		c.sessions, c.sessionsTotal, c.io, c.bytes, c.latency, c.poll, c.sleeps, c.lateWakeups,
	} {
		out <- desc
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	workers := c.source.Workers()
	out <- prometheus.MustNewConstMetric(c.sessions, prometheus.GaugeValue, float64(c.source.Sessions()))
	counter(out, c.sessionsTotal, c.source.SessionsTotal())
	for operation := range datapath.OperationCount {
		c.collectOperation(out, workers, operation)
	}
	c.collectPolling(out, workers)
}

func counter(out chan<- prometheus.Metric, desc *prometheus.Desc, value uint64, labels ...string) {
	out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(value), labels...)
}

func (c *Collector) collectOperation(out chan<- prometheus.Metric, workers []*datapath.Worker, operation datapath.Operation) {
	for code := range status.Code(status.CodeCount) {
		var total uint64
		for _, w := range workers {
			total += w.Counters().IO(operation, code)
		}
		// Successes are there from the start, so that rates can be taken;
		// failures appear when they happen.
		if total > 0 || code == status.Success {
			counter(out, c.io, total, operation.String(), code.String())
		}
	}
	var bytes uint64
	for _, w := range workers {
		bytes += w.Counters().Bytes(operation)
	}
	if operation == datapath.ReadOperation || operation == datapath.WriteOperation {
		counter(out, c.bytes, bytes, operation.String())
	}
	c.collectLatency(out, workers, operation)
}

const nanosecondsPerSecond = 1e9

func (c *Collector) collectLatency(out chan<- prometheus.Metric, workers []*datapath.Worker, operation datapath.Operation) {
	var count, sumNs uint64
	var merged [datapath.LatencyBuckets]uint64
	for _, w := range workers {
		counts, ns := w.Counters().Latency(operation).Snapshot()
		sumNs += ns
		for i, n := range counts {
			merged[i] += n
		}
	}
	buckets := make(map[float64]uint64, len(merged))
	for i, n := range merged {
		count += n
		if i < len(merged)-1 { // the last bucket is open
			buckets[float64(datapath.LatencyBound(i))/nanosecondsPerSecond] = count
		}
	}
	out <- prometheus.MustNewConstHistogram(c.latency, count, float64(sumNs)/nanosecondsPerSecond, buckets, operation.String())
}

func (c *Collector) collectPolling(out chan<- prometheus.Metric, workers []*datapath.Worker) {
	var total progress.Stats
	for _, w := range workers {
		stats := w.Stats()
		total.Hits += stats.Hits
		total.Misses += stats.Misses
		total.Sleeps += stats.Sleeps
		total.LateWakeups += stats.LateWakeups
	}
	counter(out, c.poll, total.Hits, "hit")
	counter(out, c.poll, total.Misses, "miss")
	counter(out, c.sleeps, total.Sleeps)
	counter(out, c.lateWakeups, total.LateWakeups)
}
