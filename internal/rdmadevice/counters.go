// SPDX-License-Identifier: Apache-2.0

package rdmadevice

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/prometheus/procfs/sysfs"
)

// PortCounters holds a port's counts since its driver was loaded. A counter that the device does
// not have is missing, which differs from 0.
type PortCounters struct {
	Device        string
	Port          uint
	Active        bool
	RateBytesPerS uint64
	ReceivedBytes, TransmittedBytes,
	ReceivedPackets, TransmittedPackets *uint64
	// Errors holds the port's error counters, Hardware the device's own counters, by their names in
	// sysfs.
	Errors   map[string]uint64
	Hardware map[string]uint64
}

// Counters reads the counters of all ports. The error lists devices that cannot be read; the others
// are returned all the same.
func (t *Tree) Counters() ([]PortCounters, error) {
	names, err := t.names()
	if err != nil {
		return nil, err
	}
	var all []PortCounters
	var errs []error
	for _, name := range names {
		device, err := t.fs.InfiniBandDevice(name)
		if err != nil {
			errs = append(errs, fmt.Errorf("read counters of RDMA device %q: %w", name, err))
			continue
		}
		for _, number := range slices.Sorted(maps.Keys(device.Ports)) {
			port := device.Ports[number]
			all = append(all, PortCounters{
				Device: name, Port: number, Active: port.State == "ACTIVE",
				RateBytesPerS:      port.Rate,
				ReceivedBytes:      port.Counters.PortRcvData,
				TransmittedBytes:   port.Counters.PortXmitData,
				ReceivedPackets:    port.Counters.PortRcvPackets,
				TransmittedPackets: port.Counters.PortXmitPackets,
				Errors:             portErrors(&port.Counters), Hardware: t.hardwareCounters(name,
					number),
			})
		}
	}
	return all, errors.Join(errs...)
}

func portErrors(c *sysfs.InfiniBandCounters) map[string]uint64 {
	counts := make(map[string]uint64)
	for name, value := range map[string]*uint64{
		"excessive_buffer_overrun_errors": c.ExcessiveBufferOverrunErrors,
		"link_downed":                     c.LinkDowned,
		"link_error_recovery":             c.LinkErrorRecovery,
		"local_link_integrity_errors":     c.LocalLinkIntegrityErrors,
		"port_rcv_constraint_errors":      c.PortRcvConstraintErrors,
		"port_rcv_discards":               c.PortRcvDiscards,
		"port_rcv_errors":                 c.PortRcvErrors,
		"port_rcv_remote_physical_errors": c.PortRcvRemotePhysicalErrors,
		"port_rcv_switch_relay_errors":    c.PortRcvSwitchRelayErrors,
		"port_xmit_constraint_errors":     c.PortXmitConstraintErrors,
		"port_xmit_discards":              c.PortXmitDiscards, "port_xmit_wait": c.PortXmitWait,
		"symbol_error": c.SymbolError,
		"VL15_dropped": c.VL15Dropped,
	} {
		if value != nil {
			counts[name] = *value
		}
	}
	return counts
}

// maxHardwareCounters is the largest number of counters of one port.
const maxHardwareCounters = 512

// hardwareCounters reads a port's hw_counters, which depend on the driver.
func (t *Tree) hardwareCounters(name string, port uint) map[string]uint64 {
	directory := filepath.Join(classDirectory, name, "ports", fmt.Sprint(port), "hw_counters")
	counts := make(map[string]uint64)
	for _, counter := range t.list(directory) {
		if counter == "lifespan" || len(counts) == maxHardwareCounters { // lifespan is a setting
			continue
		}
		if value, err := strconv.ParseUint(t.read(directory, counter), 10, 64); err == nil {
			counts[counter] = value
		}
	}
	return counts
}
