package metrics

import "github.com/prometheus/client_golang/prometheus"

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
