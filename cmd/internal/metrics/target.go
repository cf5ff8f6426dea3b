// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// TargetSource is a target.
type TargetSource interface {
	// Volumes returns the state of each volume, without Queues.
	Volumes() []target.VolumeStatus
	Sessions() int
	// ConnectedQueues counts the queues of open sessions by their RDMA transport.
	ConnectedQueues() map[string]int
	SessionsTotal() uint64
	// SessionsPostponed counts sessions that were opened faster than the target admits them.
	SessionsPostponed() uint64
	Workers() []*datapath.Worker
}

// TargetCollector collects the metrics of a target at each scrape.
type TargetCollector struct {
	source TargetSource
	targetMetrics
}

type targetMetrics struct {
	sessions, sessionsTotal *metric
	sessionsPostponed       *metric
	connected               *metric
	failures, state         *metric
	queues                  queueMetrics
	clients                 clientMetrics
	workers                 workerMetrics
}

const targetPrefix = "zc_target_"

func newTargetMetrics(options Options) targetMetrics {
	return targetMetrics{
		sessions: define(targetPrefix+"sessions", Gauge,
			"Control connections of relays that are open now; each relay has one more than it has sessions."),
		sessionsTotal: define(targetPrefix+"sessions_total", Counter,
			"Control connections of relays that have been opened."),
		sessionsPostponed: define(targetPrefix+"sessions_postponed_total", Counter,
			"Control connections that the target asked to try again later, because relays opened more than limits.sessions_per_second."),
		connected: define(targetPrefix+"connected_queues", Gauge,
			"Queues of open sessions that are connected to their relay, by RDMA transport.",
			"transport"),
		failures: define(targetPrefix+"volume_failures_total", Counter,
			"Requests that a volume has failed, by operation and cause: an error number (such as ENOSPC), truncated (the file has become shorter), volume_failed (rejected because of an earlier failure), injected (by --fault), or other (also rare error numbers, which the log names). There from the start.",
			"volume", "op", "cause"),
		state: define(targetPrefix+"volume_state", Gauge,
			"Always 1; the label says whether a volume is "+volume.States.Names()+".",
			"volume", "state"),
		queues: newQueueMetrics(options, targetPrefix, "volume",
			"Time from receiving an IO to sending its answer.",
			datapath.NoResponseRoom, datapath.NoReadCredit, datapath.NoLease),
		clients: newClientMetrics(targetPrefix, "volume"),
		workers: newWorkerMetrics(targetPrefix),
	}
}

func (m *targetMetrics) all() []*metric {
	all := append([]*metric{m.sessions, m.sessionsTotal, m.sessionsPostponed,
		m.connected}, m.queues.all()...)
	all = append(append(all, m.clients.all()...), m.failures, m.state)
	return append(all, m.workers.all()...)
}

// NewTargetCollector returns a collector of source's metrics.
func NewTargetCollector(source TargetSource, options Options) *TargetCollector {
	return &TargetCollector{source: source, targetMetrics: newTargetMetrics(options)}
}

// Describe sends the descriptions of all metrics.
func (c *TargetCollector) Describe(out chan<- *prometheus.Desc) { describe(out, c.all()) }

// Collect sends the current values of all metrics.
func (c *TargetCollector) Collect(out chan<- prometheus.Metric) {
	c.sessions.send(out, float64(c.source.Sessions()))
	c.sessionsTotal.send(out, float64(c.source.SessionsTotal()))
	c.sessionsPostponed.send(out, float64(c.source.SessionsPostponed()))
	for transport, count := range c.source.ConnectedQueues() {
		c.connected.send(out, float64(count), transport)
	}
	for _, v := range c.source.Volumes() {
		c.state.send(out, 1, v.Name, string(v.State))
		if v.Counters == nil {
			continue // it is not offered
		}
		c.queues.collect(out, v.Name, v.Counters.Queues())
		c.clients.collect(out, v.Name, v.Clients)
		c.sendVolumeFailures(out, v.Name, v.Failures)
	}
	c.workers.collect(out, c.source.Workers())
}
