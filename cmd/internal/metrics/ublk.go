// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/zc-relay/zc-relay/pkg/blockio"
	"github.com/zc-relay/zc-relay/pkg/ublk"
)

// UblkSource is a gateway of a kernel's block device.
type UblkSource interface {
	Status() ublk.Status
	// Quarantined returns the memory in bytes that silent relays hold.
	Quarantined() uint64
}

// UblkCollector collects the metrics of a block device at each scrape.
type UblkCollector struct {
	source UblkSource
	ublkMetrics
}

type ublkMetrics struct {
	size, inFlight, requests, bytes, quarantined *metric
}

func newUblkMetrics() ublkMetrics {
	const prefix = "zc_relay_ublk_"
	return ublkMetrics{
		size: define(prefix+"size_bytes", Gauge, "Size of the block device.", "device"),
		inFlight: define(prefix+"requests_in_flight", Gauge,
			"Requests of the kernel that have not been answered.", "device"),
		requests: define(prefix+"requests_total", Counter,
			"Requests of the kernel that have been answered, by command and error; the error of success is success. There from the start.",
			"device", "command", "error"),
		bytes: define(prefix+"bytes_total", Counter,
			"Bytes that successful requests of the kernel have read or written.", "device",
			"command"),
		quarantined: define(prefix+"quarantined_bytes", Gauge,
			"Memory of the gateway that silent relays have not released.", "device"),
	}
}

func (m *ublkMetrics) all() []*metric {
	return []*metric{m.size, m.inFlight, m.requests, m.bytes, m.quarantined}
}

// NewUblkCollector returns a collector of source's metrics.
func NewUblkCollector(source UblkSource) *UblkCollector {
	return &UblkCollector{source: source, ublkMetrics: newUblkMetrics()}
}

// Describe sends the descriptions of all metrics.
func (c *UblkCollector) Describe(out chan<- *prometheus.Desc) { describe(out, c.all()) }

// Collect sends the current values of all metrics.
func (c *UblkCollector) Collect(out chan<- prometheus.Metric) {
	s := c.source.Status()
	c.size.send(out, float64(s.Size), s.Path)
	c.inFlight.send(out, float64(s.InFlight), s.Path)
	c.quarantined.send(out, float64(c.source.Quarantined()), s.Path)
	c.bytes.send(out, float64(s.BytesRead), s.Path, blockio.Read.String())
	c.bytes.send(out, float64(s.BytesWritten), s.Path, blockio.Write.String())
	c.requests.sendCounts(out, s.Path, ublk.Commands(), s.Requests)
}
