package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/zc-relay/zc-relay/pkg/nbd"
)

// NBDSource is an NBD server.
type NBDSource interface {
	Status() []nbd.ExportStatus
}

// NBDCollector collects the metrics of an NBD server at each scrape.
type NBDCollector struct {
	source NBDSource
	nbdMetrics
}

type nbdMetrics struct {
	size, connections, accepted, inFlight, requests, bytes *metric
}

const nbdPrefix = "zc_relay_nbd_"

func newNBDMetrics() nbdMetrics {
	return nbdMetrics{
		size: define(nbdPrefix+"size_bytes", Gauge,
			"Size of the export, as clients that connect now see it.", "export"),
		connections: define(nbdPrefix+"connections", Gauge,
			"Connections of NBD clients that are open now.", "export"),
		accepted: define(nbdPrefix+"connections_total", Counter,
			"Connections of NBD clients that have been accepted.", "export"),
		inFlight: define(nbdPrefix+"requests_in_flight", Gauge,
			"Requests of NBD clients that have not been answered.", "export"),
		requests: define(nbdPrefix+"requests_total", Counter,
			"Requests of NBD clients that have been answered, by command and error; the error of success is success.",
			"export", "command", "error"),
		bytes: define(nbdPrefix+"bytes_total", Counter,
			"Bytes that successful requests of NBD clients have read or written.", "export",
			"command"),
	}
}

func (m *nbdMetrics) all() []*metric {
	return []*metric{m.size, m.connections, m.accepted, m.inFlight, m.requests, m.bytes}
}

// NewNBDCollector returns a collector of source's metrics.
func NewNBDCollector(source NBDSource) *NBDCollector {
	return &NBDCollector{source: source, nbdMetrics: newNBDMetrics()}
}

// Describe sends the descriptions of all metrics.
func (c *NBDCollector) Describe(out chan<- *prometheus.Desc) { describe(out, c.all()) }

// Collect sends the current values of all metrics.
func (c *NBDCollector) Collect(out chan<- prometheus.Metric) {
	for _, e := range c.source.Status() {
		c.size.send(out, float64(e.Info.Size), e.Name)
		c.connections.send(out, float64(e.Connections), e.Name)
		c.accepted.send(out, float64(e.Accepted), e.Name)
		c.inFlight.send(out, float64(e.InFlight), e.Name)
		for _, r := range e.Requests {
			c.requests.send(out, float64(r.Count), e.Name, r.Command.String(), r.Error.Error())
		}
		c.bytes.send(out, float64(e.BytesRead), e.Name, nbd.Read.String())
		c.bytes.send(out, float64(e.BytesWritten), e.Name, nbd.Write.String())
	}
}
