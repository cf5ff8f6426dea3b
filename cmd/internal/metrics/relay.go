// Package metrics exports what the daemons count to Prometheus. The data path
// is not disturbed by a scrape: it counts in memory of its own, which is only
// read.
package metrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/zc-relay/zc-relay/pkg/datapath"
)

// Channel is what the metrics of a relay's channel are made of.
type Channel struct {
	// Name tells the channel from all others of the relay.
	Name string
	// Device, Representor and Service are its parts; Target is where it
	// forwards to, and Volume what it asks for there.
	Device, Representor, Service, Target, Volume string

	Counters         *datapath.CounterSet
	Sessions         int
	SessionsAccepted uint64
	SessionsRefused  uint64
	ExportedBytes    uint64

	TargetReady    bool
	TargetAttempt  int
	TargetConnects uint64
	TargetLosses   uint64
	TargetFailures uint64
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
	channel  channelMetrics
	sessions sessionMetrics
	link     linkMetrics
	queues   queueMetrics
	workers  workerMetrics
}

const relayPrefix = "zc_relay_"

func newRelayMetrics() relayMetrics {
	return relayMetrics{
		channel:  newChannelMetrics(),
		sessions: newSessionMetrics(),
		link:     newLinkMetrics(),
		queues: newQueueMetrics(relayPrefix, "channel", "Time from taking an IO from the client to answering it.",
			datapath.NoClientReceive),
		workers: newWorkerMetrics(relayPrefix),
	}
}

func (m *relayMetrics) all() []*metric {
	return slices.Concat(m.channel.all(), m.sessions.all(), m.link.all(), m.queues.all(), m.workers.all())
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
		c.channel.collect(out, &channel)
		c.sessions.collect(out, &channel)
		c.link.collect(out, &channel)
		c.queues.collect(out, channel.Name, channel.Counters)
	}
	c.workers.collect(out, c.source.Workers())
}

func describe(out chan<- *prometheus.Desc, metrics []*metric) {
	for _, m := range metrics {
		out <- m.desc
	}
}
