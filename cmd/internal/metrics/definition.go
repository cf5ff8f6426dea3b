// SPDX-License-Identifier: Apache-2.0

package metrics

import "github.com/prometheus/client_golang/prometheus"

// Definition describes a metric without its value.
type Definition struct {
	Name   string
	Type   Type
	Labels []string
	Help   string
}

// Type is a metric's type, with Prometheus' name for it.
type Type string

// The types of metrics.
const (
	Counter   Type = "counter"
	Gauge     Type = "gauge"
	Histogram Type = "histogram"
)

// metric is a definition with its description for the client library.
type metric struct {
	Definition
	desc *prometheus.Desc
}

func define(name string, kind Type, help string, labels ...string) *metric {
	return &metric{
		Definition: Definition{Name: name, Type: kind, Labels: labels, Help: help},
		desc:       prometheus.NewDesc(name, help, labels, nil),
	}
}

// send sends one value of the metric.
func (m *metric) send(out chan<- prometheus.Metric, value float64, labels ...string) {
	kind := prometheus.GaugeValue
	if m.Type == Counter {
		kind = prometheus.CounterValue
	}
	out <- prometheus.MustNewConstMetric(m.desc, kind, value, labels...)
}

// Definitions returns all metrics that the daemons define, in the order of the documentation.
func Definitions() []Definition {
	options := Options{Queues: true}
	relay, target := newRelayMetrics(options), newTargetMetrics(options)
	daemon, device := newDaemonMetrics(), newDeviceMetrics()
	nbd, ublk := newNBDMetrics(), newUblkMetrics()
	var all []Definition
	for _, group := range [][]*metric{
		relay.all(), target.all(), daemon.all(), device.all(), nbd.all(), ublk.all(),
	} {
		for _, m := range group {
			all = append(all, m.Definition)
		}
	}
	return all
}
