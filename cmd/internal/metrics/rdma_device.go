// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/rdmadevice"
)

// DeviceCollector collects the counters of the machine's RDMA devices from sysfs at each scrape. A
// machine without RDMA devices has none of these metrics except the success of the scrape.
type DeviceCollector struct {
	tree *rdmadevice.Tree
	log  *zap.Logger
	// described is sent at each scrape but read once: a device's GID table may have hundreds of
	// entries.
	described []prometheus.Metric
	deviceMetrics
}

type deviceMetrics struct {
	info, success                       *metric
	active, rate                        *metric
	receivedBytes, transmittedBytes     *metric
	receivedPackets, transmittedPackets *metric
	errors, hardware                    *metric
}

const devicePrefix = "zc_rdma_"

func newDeviceMetrics() deviceMetrics {
	port := func(name string, kind Type, help string, more ...string) *metric {
		return define(devicePrefix+"port_"+name, kind, help, append([]string{"device", "port"},
			more...)...)
	}
	return deviceMetrics{
		info: define(devicePrefix+"device_info", Gauge,
			"Always 1; the labels describe the RDMA device as of the start of the daemon.",
			"device", "netdev", "pci", "auxiliary", "node_guid", "firmware", "board"),
		success: define(devicePrefix+"scrape_success", Gauge,
			"1 if all RDMA devices could be read, else 0. Machines without any have 1."),
		active: port("active", Gauge, "1 if the port is active, else 0."),
		rate:   port("rate_bytes_per_second", Gauge, "Speed of the port's link."),
		receivedBytes: port("received_bytes_total", Counter,
			"Bytes received, headers included."),
		transmittedBytes: port("transmitted_bytes_total", Counter,
			"Bytes transmitted, headers included."),
		receivedPackets:    port("received_packets_total", Counter, "Packets received."),
		transmittedPackets: port("transmitted_packets_total", Counter, "Packets transmitted."),
		errors: port("errors_total", Counter,
			"The port's error counters, named as in sysfs.", "error"),
		hardware: port("hardware_total", Counter,
			"The device's own counters (hw_counters), named as in sysfs; they differ by driver.",
			"counter"),
	}
}

func (m *deviceMetrics) all() []*metric {
	return []*metric{
		m.info, m.success, m.active, m.rate, m.receivedBytes, m.transmittedBytes, m.receivedPackets,
		m.transmittedPackets, m.errors, m.hardware,
	}
}

// NewDeviceCollector returns a collector for the devices of a sysfs.
func NewDeviceCollector(tree *rdmadevice.Tree, log *zap.Logger) *DeviceCollector {
	c := &DeviceCollector{tree: tree, log: log, deviceMetrics: newDeviceMetrics()}
	devices, err := tree.Devices()
	if err != nil {
		log.Warn("read RDMA devices", zap.Error(err))
	}
	for i := range devices {
		d := &devices[i]
		c.described = append(c.described, prometheus.MustNewConstMetric(c.info.desc,
			prometheus.GaugeValue, 1,
			d.Name, netDevNames(d), d.PCI, d.Auxiliary, d.NodeGUID, d.Firmware, d.Board))
	}
	return c
}

func netDevNames(d *rdmadevice.Device) string {
	names := make([]string, len(d.Net))
	for i := range d.Net {
		names[i] = d.Net[i].Name
	}
	return strings.Join(names, ",")
}

// Describe sends the descriptions of all metrics.
func (c *DeviceCollector) Describe(out chan<- *prometheus.Desc) { describe(out, c.all()) }

// Collect sends the current values of all metrics.
func (c *DeviceCollector) Collect(out chan<- prometheus.Metric) {
	for _, m := range c.described {
		out <- m
	}
	ports, err := c.tree.Counters()
	success := 1.0
	if err != nil {
		success = 0
		c.log.Debug("read RDMA counters", zap.Error(err))
	}
	c.success.send(out, success)
	for i := range ports {
		c.collectPort(out, &ports[i])
	}
}

func (c *DeviceCollector) collectPort(out chan<- prometheus.Metric, p *rdmadevice.PortCounters) {
	number := strconv.FormatUint(uint64(p.Port), 10)
	c.active.send(out, truth(p.Active), p.Device, number)
	c.rate.send(out, float64(p.RateBytesPerS), p.Device, number)
	for _, count := range []struct {
		*metric
		value *uint64
	}{
		{c.receivedBytes, p.ReceivedBytes}, {c.transmittedBytes, p.TransmittedBytes},
		{c.receivedPackets, p.ReceivedPackets}, {c.transmittedPackets, p.TransmittedPackets},
	} {
		if count.value != nil {
			count.send(out, float64(*count.value), p.Device, number)
		}
	}
	for name, value := range p.Errors {
		c.errors.send(out, float64(value), p.Device, number, name)
	}
	for name, value := range p.Hardware {
		c.hardware.send(out, float64(value), p.Device, number, name)
	}
}
