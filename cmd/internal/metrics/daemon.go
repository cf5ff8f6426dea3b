// SPDX-License-Identifier: Apache-2.0

package metrics

import "github.com/prometheus/client_golang/prometheus"

// DaemonSource is a daemon that rereads its configuration.
type DaemonSource interface {
	// ReloadFailed reports whether the latest reload has failed, or is blocked.
	ReloadFailed() bool
	// RestartPending counts the settings whose values in the configuration file take effect with
	// the next start.
	RestartPending() int
}

// DaemonCollector collects at each scrape what does not depend on the role of a daemon.
type DaemonCollector struct {
	source DaemonSource
	daemonMetrics
}

type daemonMetrics struct{ reloadSuccess, restartPending *metric }

func newDaemonMetrics() daemonMetrics {
	return daemonMetrics{
		reloadSuccess: define("zc_reload_success", Gauge,
			"0 if the latest reload of configuration and certificates has failed or is blocked, else 1."),
		restartPending: define("zc_restart_pending_settings", Gauge,
			"Settings whose values in the configuration file take effect with the next start, as of the latest reload."),
	}
}

func (m *daemonMetrics) all() []*metric { return []*metric{m.reloadSuccess, m.restartPending} }

// NewDaemonCollector returns a collector of source's metrics.
func NewDaemonCollector(source DaemonSource) *DaemonCollector {
	return &DaemonCollector{source: source, daemonMetrics: newDaemonMetrics()}
}

// Describe sends the descriptions of all metrics.
func (c *DaemonCollector) Describe(out chan<- *prometheus.Desc) { describe(out, c.all()) }

// Collect sends the current values of all metrics.
func (c *DaemonCollector) Collect(out chan<- prometheus.Metric) {
	c.reloadSuccess.send(out, truth(!c.source.ReloadFailed()))
	c.restartPending.send(out, float64(c.source.RestartPending()))
}
