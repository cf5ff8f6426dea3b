// SPDX-License-Identifier: Apache-2.0

// Package metrics shows the daemons' counters to Prometheus. A scrape does not disturb the data
// path: it only reads the memory that the data path counts in.
package metrics

import (
	"net/netip"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/relay"
)

// RelaySource is a relay. Its channels and workers may change over time.
type RelaySource interface {
	Channels() []relay.ChannelStatus
	Workers() []*datapath.Worker
}

// RelayCollector collects the metrics of a relay at each scrape.
type RelayCollector struct {
	source RelaySource
	relayMetrics
}

type relayMetrics struct {
	channel  channelMetrics
	sessions sessionMetrics
	link     linkMetrics
	queues   queueMetrics
	clients  clientMetrics
	throttle *metric
	workers  workerMetrics
}

const relayPrefix = "zc_relay_"

func newRelayMetrics(options Options) relayMetrics {
	return relayMetrics{
		channel:  newChannelMetrics(),
		sessions: newSessionMetrics(),
		link:     newLinkMetrics(),
		queues: newQueueMetrics(options, relayPrefix, "channel",
			"Time from receiving an IO from the client to completing it.",
			datapath.NoClientReceive),
		clients: newClientMetrics(relayPrefix, "channel"),
		throttle: define(relayPrefix+"throttled_seconds_total", Counter,
			"Time that IOs have waited for the rate limits of their channel (channel) or session (session).",
			options.labels("channel", "limit")...),
		workers: newWorkerMetrics(relayPrefix),
	}
}

func (m *relayMetrics) all() []*metric {
	return slices.Concat(m.channel.all(), m.sessions.all(), m.link.all(), m.queues.all(),
		[]*metric{m.throttle}, m.clients.all(), m.workers.all())
}

// NewRelayCollector returns a collector of source's metrics.
func NewRelayCollector(source RelaySource, options Options) *RelayCollector {
	return &RelayCollector{source: source, relayMetrics: newRelayMetrics(options)}
}

// Describe sends the descriptions of all metrics.
func (c *RelayCollector) Describe(out chan<- *prometheus.Desc) { describe(out, c.all()) }

// Collect sends the current values of all metrics.
func (c *RelayCollector) Collect(out chan<- prometheus.Metric) {
	channels := merge(c.source.Channels())
	for i := range channels {
		channel := &channels[i]
		c.channel.collect(out, channel)
		c.sessions.collect(out, channel)
		c.link.collect(out, channel)
		queues := channel.Counters.Queues()
		c.queues.collect(out, channel.FullName, queues)
		c.collectThrottled(out, channel.FullName, queues)
		c.clients.collect(out, channel.FullName, channel.Clients)
	}
	c.workers.collect(out, c.source.Workers())
}

// merge makes one channel of those with the same name: one that was removed from the configuration
// and added again is there twice while sessions of the former continue.
func merge(channels []relay.ChannelStatus) []relay.ChannelStatus {
	places := make(map[relay.ChannelID]int, len(channels))
	merged := make([]relay.ChannelStatus, 0, len(channels))
	for i := range channels {
		c := &channels[i]
		place, isKnown := places[c.ChannelID]
		if !isKnown {
			places[c.ChannelID] = len(merged)
			merged = append(merged, *c)
			continue
		}
		m := &merged[place]
		m.Sessions += c.Sessions
		m.SessionsAccepted += c.SessionsAccepted
		m.SessionsRefused += c.SessionsRefused
		m.ExportedBytes += c.ExportedBytes
		m.OpenSessions = append(m.OpenSessions, c.OpenSessions...)
	}
	return merged
}

func (c *RelayCollector) collectThrottled(out chan<- prometheus.Metric, channel string,
	queues []datapath.QueueCounts) {
	shown := c.queues.of(queues)
	for i := range shown {
		for level := range datapath.ThrottleLevelCount {
			c.throttle.send(out, shown[i].Throttled(level).Seconds(),
				c.queues.values(channel, shown[i].Queue, level.String())...)
		}
	}
}

func describe(out chan<- *prometheus.Desc, metrics []*metric) {
	for _, m := range metrics {
		out <- m.desc
	}
}

// channelMetrics describe a channel.
type channelMetrics struct{ info, state *metric }

func newChannelMetrics() channelMetrics {
	return channelMetrics{
		info: define(relayPrefix+"channel_info", Gauge,
			"Always 1; the labels describe the channel.",
			"channel", "device", "representor", "service", "target", "volume"),
		state: define(relayPrefix+"channel_state", Gauge,
			"Always 1; the label says whether a channel is "+relay.ChannelStates.Names()+".",
			"channel", "state"),
	}
}

func (m *channelMetrics) all() []*metric { return []*metric{m.info, m.state} }

func (m *channelMetrics) collect(out chan<- prometheus.Metric, c *relay.ChannelStatus) {
	m.info.send(out, 1, c.FullName, c.Device, c.Representor, c.ChannelID.Name,
		addressText(c.Target), c.Volume)
	m.state.send(out, 1, c.FullName, string(c.State))
}

// addressText returns an address as text, "" if it is not known yet.
func addressText(a netip.AddrPort) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// sessionMetrics are the metrics of a channel's sessions.
type sessionMetrics struct{ open, unreleased, accepted, refused, exported, queues *metric }

func newSessionMetrics() sessionMetrics {
	return sessionMetrics{
		open: define(relayPrefix+"sessions", Gauge, "Sessions that are open now.", "channel"),
		unreleased: define(relayPrefix+"sessions_unreleased", Gauge,
			"Sessions that have ended and could not be released yet.", "channel"),
		accepted: define(relayPrefix+"sessions_total", Counter, "Sessions that have been opened.",
			"channel"),
		refused: define(relayPrefix+"sessions_refused_total", Counter,
			"Clients that were rejected because the relay had its maximum of sessions.", "channel"),
		exported: define(relayPrefix+"exported_bytes", Gauge,
			"Memory that the clients have exported.", "channel"),
		queues: define(relayPrefix+"connected_queues", Gauge,
			"Queues of open sessions that are connected to the target, by RDMA transport.",
			"channel", "transport"),
	}
}

func (m *sessionMetrics) all() []*metric {
	return []*metric{m.open, m.unreleased, m.accepted, m.refused, m.exported, m.queues}
}

func (m *sessionMetrics) collect(out chan<- prometheus.Metric, c *relay.ChannelStatus) {
	unreleased, connected := 0, make(map[string]int) // queues by transport
	for i := range c.OpenSessions {
		session := &c.OpenSessions[i]
		if session.Unreleased {
			unreleased++
		}
		for _, q := range session.Queues {
			if q.Transport != "" {
				connected[q.Transport]++
			}
		}
	}
	m.open.send(out, float64(c.Sessions), c.FullName)
	m.unreleased.send(out, float64(unreleased), c.FullName)
	m.accepted.send(out, float64(c.SessionsAccepted), c.FullName)
	m.refused.send(out, float64(c.SessionsRefused), c.FullName)
	m.exported.send(out, float64(c.ExportedBytes), c.FullName)
	for transport, count := range connected {
		m.queues.send(out, float64(count), c.FullName, transport)
	}
}

// linkMetrics are the metrics of a channel's standing connections to its targets.
type linkMetrics struct {
	ready, moves, usable, attempt, connects, losses, failures, postponed *metric
	state, nextAttempt, failuresByCode                                   *metric
}

func newLinkMetrics() linkMetrics {
	return linkMetrics{
		ready: define(relayPrefix+"target_ready", Gauge,
			"1 if a target can serve new sessions, else 0. target is the one that does, or was the last to do so. Always 1 with another target_protocol than native.",
			"channel", "target"),
		moves: define(relayPrefix+"target_moves_total", Counter,
			"Times that the channel has moved from one target to another.", "channel"),
		usable: define(relayPrefix+"target_usable", Gauge,
			"1 if the target serves or could take over (ready, stand-by), else 0. Absent for an address at which nobody listens because another one leads to the target.",
			"channel", "target"),
		attempt: define(relayPrefix+"target_connect_attempt", Gauge,
			"Attempts to connect since the target was found to be down; 0 while it is up.",
			"channel", "target"),
		connects: define(relayPrefix+"target_connects_total", Counter,
			"Times that the standing connection to a target was set up; all except the first are reconnects.",
			"channel", "target"),
		losses: define(relayPrefix+"target_losses_total", Counter,
			"Times that the standing connection to a target was lost.", "channel", "target"),
		failures: define(relayPrefix+"target_connect_failures_total", Counter,
			"Failed attempts to connect to a target. The answer of a stand-by does not count.",
			"channel", "target"),
		postponed: define(relayPrefix+"target_postponed_total", Counter,
			"Attempts to connect to a target, including those of sessions, that it answered with a time to try again.",
			"channel", "target"),
		state: define(relayPrefix+"target_state", Gauge,
			"Always 1; the label says whether a target is connecting, ready, waiting, stand-by, or given-up.",
			"channel", "target", "state"),
		nextAttempt: define(relayPrefix+"target_next_attempt_timestamp_seconds", Gauge,
			"Unix time at which the relay connects to a target again; absent unless that is scheduled.",
			"channel", "target"),
		failuresByCode: define(relayPrefix+"target_attempt_failures_total", Counter,
			"Failed attempts to connect to a target, by the code of the failure; absent for a code that has not occurred.",
			"channel", "target", "code"),
	}
}

func (m *linkMetrics) all() []*metric {
	return []*metric{m.ready, m.moves, m.usable, m.attempt, m.connects, m.losses, m.failures,
		m.postponed, m.state, m.nextAttempt, m.failuresByCode}
}

func (m *linkMetrics) collect(out chan<- prometheus.Metric, c *relay.ChannelStatus) {
	m.ready.send(out, truth(c.Link.State == relay.LinkReady), c.FullName, addressText(c.Target))
	m.moves.send(out, float64(c.TargetMoves), c.FullName)
	for i := range c.Targets {
		m.collectTarget(out, c.FullName, &c.Targets[i])
	}
}

func (m *linkMetrics) collectTarget(out chan<- prometheus.Metric, channel string,
	t *relay.TargetStatus) {
	address, link := t.Address.String(), &t.Link
	if !t.Deserted {
		m.usable.send(out, truth(link.State.IsUsable()), channel, address)
	}
	m.attempt.send(out, float64(link.Attempt), channel, address)
	m.connects.send(out, float64(link.Connects), channel, address)
	m.losses.send(out, float64(link.Losses), channel, address)
	m.failures.send(out, float64(link.Failures), channel, address)
	m.postponed.send(out, float64(link.Postponed), channel, address)
	m.state.send(out, 1, channel, address, string(link.State))
	if link.NextAttempt != nil {
		m.nextAttempt.send(out, float64(link.NextAttempt.UnixMilli())/1000, channel, address)
	}
	for code, count := range link.FailuresByCode {
		m.failuresByCode.send(out, float64(count), channel, address, code.String())
	}
}

// truth is the value of a gauge that is 1 or 0.
func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
