package metrics

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/zc-relay/zc-relay/pkg/datapath"
)

// TargetSource is a target.
type TargetSource interface {
	// Counters returns per-queue counters, keyed by volume name.
	Counters() map[string]*datapath.CounterSet
	Sessions() int
	SessionsTotal() uint64
	Workers() []*datapath.Worker
}

// TargetCollector collects the metrics of a target at each scrape.
type TargetCollector struct {
	source TargetSource
	targetMetrics
}

type targetMetrics struct {
	sessions, sessionsTotal *metric
	queues                  queueMetrics
	workers                 workerMetrics
}

const targetPrefix = "zc_target_"

func newTargetMetrics() targetMetrics {
	return targetMetrics{
		sessions: define(targetPrefix+"sessions", Gauge,
			"Control connections of relays that are open now; each relay has one more than it has sessions."),
		sessionsTotal: define(targetPrefix+"sessions_total", Counter,
			"Control connections of relays that have been opened."),
		queues: newQueueMetrics(targetPrefix, "volume",
			"Time from receiving an IO to sending its answer.",
			datapath.NoResponseRoom, datapath.NoReadCredit),
		workers: newWorkerMetrics(targetPrefix),
	}
}

func (m *targetMetrics) all() []*metric {
	all := []*metric{m.sessions, m.sessionsTotal}
	return append(append(all, m.queues.all()...), m.workers.all()...)
}

// NewTargetCollector returns a collector of source's metrics.
func NewTargetCollector(source TargetSource) *TargetCollector {
	return &TargetCollector{source: source, targetMetrics: newTargetMetrics()}
}

// Describe sends the descriptions of all metrics.
func (c *TargetCollector) Describe(out chan<- *prometheus.Desc) { describe(out, c.all()) }

// Collect sends the current values of all metrics.
func (c *TargetCollector) Collect(out chan<- prometheus.Metric) {
	c.sessions.send(out, float64(c.source.Sessions()))
	c.sessionsTotal.send(out, float64(c.source.SessionsTotal()))
	counters := c.source.Counters()
	for _, volume := range slices.Sorted(maps.Keys(counters)) {
		c.queues.collect(out, volume, counters[volume])
	}
	c.workers.collect(out, c.source.Workers())
}
