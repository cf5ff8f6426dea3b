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

// channelMetrics say what a channel is.
type channelMetrics struct{ info *metric }

func newChannelMetrics() channelMetrics {
	return channelMetrics{
		info: define(relayPrefix+"channel_info", Gauge, "Always 1; the labels tell what the channel is.",
			"channel", "device", "representor", "service", "target", "volume"),
	}
}

func (m *channelMetrics) all() []*metric { return []*metric{m.info} }

func (m *channelMetrics) collect(out chan<- prometheus.Metric, c *Channel) {
	m.info.send(out, 1, c.Name, c.Device, c.Representor, c.Service, c.Target, c.Volume)
}

// sessionMetrics are those of a channel's sessions.
type sessionMetrics struct{ open, accepted, refused, exported *metric }

func newSessionMetrics() sessionMetrics {
	return sessionMetrics{
		open:     define(relayPrefix+"sessions", Gauge, "Sessions that are open now.", "channel"),
		accepted: define(relayPrefix+"sessions_total", Counter, "Sessions that have been opened.", "channel"),
		refused:  define(relayPrefix+"sessions_refused_total", Counter, "Clients that were turned away because the relay had its maximum of sessions.", "channel"),
		exported: define(relayPrefix+"exported_bytes", Gauge, "Memory that the clients have exported.", "channel"),
	}
}

func (m *sessionMetrics) all() []*metric {
	return []*metric{m.open, m.accepted, m.refused, m.exported}
}

func (m *sessionMetrics) collect(out chan<- prometheus.Metric, c *Channel) {
	m.open.send(out, float64(c.Sessions), c.Name)
	m.accepted.send(out, float64(c.SessionsAccepted), c.Name)
	m.refused.send(out, float64(c.SessionsRefused), c.Name)
	m.exported.send(out, float64(c.ExportedBytes), c.Name)
}

// linkMetrics are those of a channel's standing connection to its target.
type linkMetrics struct{ ready, attempt, connects, losses, failures *metric }

func newLinkMetrics() linkMetrics {
	return linkMetrics{
		ready:    define(relayPrefix+"target_ready", Gauge, "1 if the target can serve new sessions, else 0.", "channel"),
		attempt:  define(relayPrefix+"target_connect_attempt", Gauge, "Attempts to connect since the target was found to be down; 0 while it is up.", "channel"),
		connects: define(relayPrefix+"target_connects_total", Counter, "Times that the standing connection to the target was made; all but the first are reconnects.", "channel"),
		losses:   define(relayPrefix+"target_losses_total", Counter, "Times that the standing connection to the target was lost.", "channel"),
		failures: define(relayPrefix+"target_connect_failures_total", Counter, "Attempts to connect to the target that failed.", "channel"),
	}
}

func (m *linkMetrics) all() []*metric {
	return []*metric{m.ready, m.attempt, m.connects, m.losses, m.failures}
}

func (m *linkMetrics) collect(out chan<- prometheus.Metric, c *Channel) {
	ready := 0.0
	if c.TargetReady {
		ready = 1
	}
	m.ready.send(out, ready, c.Name)
	m.attempt.send(out, float64(c.TargetAttempt), c.Name)
	m.connects.send(out, float64(c.TargetConnects), c.Name)
	m.losses.send(out, float64(c.TargetLosses), c.Name)
	m.failures.send(out, float64(c.TargetFailures), c.Name)
}
