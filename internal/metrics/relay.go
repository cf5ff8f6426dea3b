// Package metrics exports what the daemons count to Prometheus. The data path
// is not disturbed by a scrape: it counts in memory of its own, which is only
// read.
package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/zc-relay/zc-relay/pkg/datapath"
)

// Channel is what the metrics of a relay's channel are made of.
type Channel struct {
	// Name tells the channel from all others of the relay.
	Name          string
	Counters      *datapath.CounterSet
	Sessions      int
	SessionsTotal uint64
}

// RelaySource is a relay whose channels and workers may change over time.
type RelaySource interface {
	Channels() []Channel
	Workers() []*datapath.Worker
}

// RelayCollector collects the metrics of a relay whenever it is scraped.
type RelayCollector struct {
	source RelaySource
	relayMetrics
}

type relayMetrics struct {
	sessions, sessionsTotal *metric
	queues                  queueMetrics
	workers                 workerMetrics
}

const relayPrefix = "zc_relay_"

func newRelayMetrics() relayMetrics {
	return relayMetrics{
		sessions:      define(relayPrefix+"sessions", Gauge, "Sessions that are open now.", "channel"),
		sessionsTotal: define(relayPrefix+"sessions_total", Counter, "Sessions that have been opened.", "channel"),
		queues: newQueueMetrics(relayPrefix, "channel", "Time from taking an IO from the client to answering it.",
			datapath.NoClientReceive),
		workers: newWorkerMetrics(relayPrefix),
	}
}

func (m *relayMetrics) all() []*metric {
	all := []*metric{m.sessions, m.sessionsTotal}
	return append(append(all, m.queues.all()...), m.workers.all()...)
}

// NewRelayCollector makes a collector of source's metrics.
func NewRelayCollector(source RelaySource) *RelayCollector {
	return &RelayCollector{source: source, relayMetrics: newRelayMetrics()}
}

// Describe implements prometheus.Collector.
func (c *RelayCollector) Describe(out chan<- *prometheus.Desc) { describe(out, c.all()) }

// Collect implements prometheus.Collector.
func (c *RelayCollector) Collect(out chan<- prometheus.Metric) {
	for _, channel := range c.source.Channels() {
		c.sessions.send(out, float64(channel.Sessions), channel.Name)
		c.sessionsTotal.send(out, float64(channel.SessionsTotal), channel.Name)
		c.queues.collect(out, channel.Name, channel.Counters)
	}
	c.workers.collect(out, c.source.Workers())
}

func describe(out chan<- *prometheus.Desc, metrics []*metric) {
	for _, m := range metrics {
		out <- m.desc
	}
}
