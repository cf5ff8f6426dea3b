// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/zc-relay/zc-relay/pkg/blockio"
	"github.com/zc-relay/zc-relay/pkg/nbd"
)

// NBDSource is an NBD server.
type NBDSource interface {
	Status() []nbd.ExportStatus
	// Quarantined returns the memory in bytes that silent relays hold, keyed by export.
	Quarantined() map[string]uint64
}

// NBDCollector collects the metrics of an NBD server at each scrape.
type NBDCollector struct {
	source NBDSource
	nbdMetrics
}

type nbdMetrics struct {
	clients                                                             nbdClientMetrics
	size, connections, accepted, inFlight, requests, bytes, quarantined *metric
}

const nbdPrefix = "zc_relay_nbd_"

// nbdClientMetrics are the metrics of NBD clients, by name.
type nbdClientMetrics struct{ requests, failures, bytes, inFlight *metric }

func newNBDClientMetrics() nbdClientMetrics {
	const byName = " Only with --metrics-per-client."
	return nbdClientMetrics{
		requests: define(nbdPrefix+"client_requests_total", Counter,
			"Requests of an NBD client that have been answered. client is the name in its certificate, its address, or its user; "+
				nbd.OtherClients+" sums up the clients beyond the limit."+byName, "export", "client"),
		failures: define(nbdPrefix+"client_failures_total", Counter,
			"Requests of an NBD client that have failed."+byName, "export", "client"),
		bytes: define(nbdPrefix+"client_bytes_total", Counter,
			"Bytes that successful requests of an NBD client have read or written."+byName,
			"export", "client", "command"),
		inFlight: define(nbdPrefix+"client_requests_in_flight", Gauge,
			"Requests of an NBD client that have not been answered."+byName, "export", "client"),
	}
}

func (m *nbdClientMetrics) all() []*metric {
	return []*metric{m.requests, m.failures, m.bytes, m.inFlight}
}

func (m *nbdClientMetrics) collect(out chan<- prometheus.Metric, e *nbd.ExportStatus) {
	for _, c := range e.Clients {
		answered, failed := c.Answered()
		m.requests.send(out, float64(answered), e.Name, c.Client)
		m.failures.send(out, float64(failed), e.Name, c.Client)
		m.bytes.send(out, float64(c.BytesRead), e.Name, c.Client, blockio.Read.String())
		m.bytes.send(out, float64(c.BytesWritten), e.Name, c.Client, blockio.Write.String())
		m.inFlight.send(out, float64(c.InFlight), e.Name, c.Client)
	}
}

func newNBDMetrics() nbdMetrics {
	return nbdMetrics{
		clients: newNBDClientMetrics(),
		size: define(nbdPrefix+"size_bytes", Gauge,
			"Size of the export, as clients that connect now see it.", "export"),
		connections: define(nbdPrefix+"connections", Gauge,
			"Connections of NBD clients that are open now.", "export"),
		accepted: define(nbdPrefix+"connections_total", Counter,
			"Connections of NBD clients that have been accepted.", "export"),
		inFlight: define(nbdPrefix+"requests_in_flight", Gauge,
			"Requests of NBD clients that have not been answered.", "export"),
		requests: define(nbdPrefix+"requests_total", Counter,
			"Requests of NBD clients that have been answered, by command and error; the error of success is success. There from the start.",
			"export", "command", "error"),
		bytes: define(nbdPrefix+"bytes_total", Counter,
			"Bytes that successful requests of NBD clients have read or written.", "export",
			"command"),
		quarantined: define(nbdPrefix+"quarantined_bytes", Gauge,
			"Memory of the gateway that silent relays have not released.", "export"),
	}
}

func (m *nbdMetrics) all() []*metric {
	return append([]*metric{m.size, m.connections, m.accepted, m.inFlight, m.requests, m.bytes,
		m.quarantined}, m.clients.all()...)
}

// NewNBDCollector returns a collector of source's metrics.
func NewNBDCollector(source NBDSource) *NBDCollector {
	return &NBDCollector{source: source, nbdMetrics: newNBDMetrics()}
}

// Describe sends the descriptions of all metrics.
func (c *NBDCollector) Describe(out chan<- *prometheus.Desc) { describe(out, c.all()) }

// Collect sends the current values of all metrics.
func (c *NBDCollector) Collect(out chan<- prometheus.Metric) {
	quarantined := c.source.Quarantined()
	for _, e := range c.source.Status() {
		c.size.send(out, float64(e.Info.Size), e.Name)
		c.connections.send(out, float64(e.Connections), e.Name)
		c.accepted.send(out, float64(e.Accepted), e.Name)
		c.inFlight.send(out, float64(e.InFlight), e.Name)
		c.quarantined.send(out, float64(quarantined[e.Name]), e.Name)
		c.requests.sendCounts(out, e.Name, nbdCommands(), e.Requests)
		c.clients.collect(out, &e)
		c.bytes.send(out, float64(e.BytesRead), e.Name, blockio.Read.String())
		c.bytes.send(out, float64(e.BytesWritten), e.Name, blockio.Write.String())
	}
}

// nbdCommands returns the commands to which a client gets an answer.
func nbdCommands() (commands []blockio.Command) {
	for command := range blockio.Command(blockio.CommandCount) {
		if command != nbd.Disconnect {
			commands = append(commands, command)
		}
	}
	return commands
}

// sendCounts sends the counts of all requests that the users of a gateway can make, also those of
// which there were none: a rate needs two samples, so a counter that appears with its first
// failures hides them from every alert. label names the export or the device.
func (m *metric) sendCounts(out chan<- prometheus.Metric, label string, commands []blockio.Command,
	requests []blockio.RequestCount) {
	type key struct {
		command blockio.Command
		outcome blockio.Errno
	}
	counts := make(map[key]uint64)
	for _, r := range requests {
		counts[key{r.Command, r.Error}] = r.Count
	}
	for _, command := range commands {
		for _, outcome := range blockio.Outcomes() {
			m.send(out, float64(counts[key{command, outcome}]), label, command.String(),
				outcome.Error())
		}
	}
}
