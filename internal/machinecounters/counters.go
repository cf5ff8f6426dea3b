// SPDX-License-Identifier: Apache-2.0

// Package machinecounters reads what the machine's own counters count during a run: those of the
// ports of RDMA devices, and those of the processors. A counter that the machine does not have, or
// does not let this process read, is missing, which differs from 0.
package machinecounters

import (
	"maps"

	"github.com/zc-relay/zc-relay/internal/rdmadevice"
)

// Counts is how much counters have grown. Every map has at least one entry, or is nil.
type Counts struct {
	Ports []PortCounts `json:"rdma_ports,omitempty"`
	// Process holds what this process used.
	Process map[string]uint64 `json:"process,omitempty"`
	// Processors holds events of the processors that this process may use, whoever caused them.
	Processors map[string]uint64 `json:"processors,omitempty"`
}

// PortCounts is a port of an RDMA device. Its counters count the traffic of all programs.
type PortCounts struct {
	Device string `json:"device"`
	Port   uint   `json:"port"`
	// Counters are named as in sysfs: those in counters, and the driver's own in hw_counters.
	Counters   map[string]uint64 `json:"counters,omitempty"`
	HWCounters map[string]uint64 `json:"hw_counters,omitempty"`
}

// Counting is a run that is counted. One goroutine uses it.
type Counting struct {
	ports   func() []PortCounts
	before  []PortCounts
	process map[string]uint64
	events  []processorEvent
}

// Start begins to count. sysfs is where the devices are found, normally rdmadevice.SystemRoot.
func Start(sysfs string) *Counting {
	c := &Counting{ports: func() []PortCounts { return readPorts(sysfs) }}
	c.before, c.process, c.events = c.ports(), processUsage(), openProcessorEvents()
	return c
}

// End returns what was counted since Start, and releases everything.
func (c *Counting) End() Counts {
	counts := Counts{Process: growth(c.process, processUsage()), Processors: endEvents(c.events)}
	for _, port := range c.ports() {
		for _, before := range c.before {
			if before.Device != port.Device || before.Port != port.Port {
				continue
			}
			port.Counters = growth(before.Counters, port.Counters)
			port.HWCounters = growth(before.HWCounters, port.HWCounters)
			counts.Ports = append(counts.Ports, port)
		}
	}
	return counts
}

// growth returns how much each counter has grown that is there before and after. A counter that was
// reset meanwhile is missing.
func growth(before, after map[string]uint64) map[string]uint64 {
	var all map[string]uint64
	for name, value := range after {
		former, found := before[name]
		if !found || value < former {
			continue
		}
		if all == nil {
			all = make(map[string]uint64)
		}
		all[name] = value - former
	}
	return all
}

// readPorts reads the counters of all ports.
func readPorts(root string) []PortCounts {
	tree, err := rdmadevice.Open(root)
	if err != nil {
		return nil // a container may have no sysfs
	}
	ports, _ := tree.Counters() // those that can be read
	all := make([]PortCounts, len(ports))
	for i := range ports {
		p := &ports[i]
		counters := maps.Clone(p.Errors)
		for name, value := range map[string]*uint64{
			"received_bytes": p.ReceivedBytes, "transmitted_bytes": p.TransmittedBytes,
			"received_packets": p.ReceivedPackets, "transmitted_packets": p.TransmittedPackets,
		} {
			if value != nil {
				counters[name] = *value
			}
		}
		all[i] = PortCounts{Device: p.Device, Port: p.Port, Counters: counters,
			HWCounters: p.Hardware}
	}
	return all
}
