// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca

// #include "skin.h"
import "C"

import (
	"fmt"
	"net/netip"
)

// defaultActiveRate is the rate of a port of a BlueField-3 in bits per second.
const defaultActiveRate = 200e9

// fillPort sets what a device says about its port. What is not configured follows from the PCI
// address: so it is the same in every process, and differs between devices.
func fillPort(d *C.struct_emu_device, config *Device) {
	mac := macOf(config)
	ipv6 := config.IPv6
	if !ipv6.IsValid() && config.LID == 0 {
		ipv6 = linkLocal(mac)
	}
	for i, b := range mac {
		d.mac[i] = C.uint8_t(b)
	}
	if ipv6.IsValid() {
		d.has_ipv6 = true
		for i, b := range ipv6.As16() {
			d.ipv6[i] = C.uint8_t(b)
		}
	}
	d.lid = C.uint16_t(config.LID)
	d.active_rate = C.uint64_t(config.ActiveRate)
	if config.ActiveRate == 0 {
		d.active_rate = defaultActiveRate
	}
	d.vhca_id = C.uint16_t(vhca(config.VHCA, config.PCI, config.Type, config.SFIndex))
}

// fillRepresentor sets what the representor with index i says about itself and its function.
func fillRepresentor(rep *C.struct_emu_representor, pci string, all []Representor, i int,
	devices []Device) {
	config := &all[i]
	setText(rep.vuid[:], config.VUID)
	name := config.Interface
	if name == "" {
		name = representorName(pci, all, i)
	}
	setText(rep.iface[:], name)
	rep._type = C.enum_doca_pci_func_type(config.Type)
	rep.is_hotplug = C.bool(config.Hotplug)
	configured := config.VHCA
	for j := range devices {
		d := &devices[j]
		if address, err := longPCI(d.PCI); err == nil && address == pci && d.Role == Host &&
			configured == nil {
			configured = d.VHCA
		}
	}
	rep.vhca_id = C.uint16_t(vhca(configured, pci, config.Type, 0))
}

// representorName returns a name as the kernel of a DPU gives them: pf0hpf, pf0vf3, or pf0sf3.
func representorName(pci string, all []Representor, i int) string {
	if all[i].Type == PhysicalFunction {
		return fmt.Sprintf("pf%chpf", pci[len(pci)-1])
	}
	n := 0
	for _, r := range all[:i] {
		if r.Type == all[i].Type {
			n++
		}
	}
	return fmt.Sprintf("pf0%s%d", map[FunctionType]string{VirtualFunction: "vf",
		SubFunction: "sf"}[all[i].Type], n)
}

// pciNumbers returns the parts of an address with its domain.
func pciNumbers(pci string) (domain uint16, bus, function uint8) {
	var device uint8
	// The address has been checked.
	_, _ = fmt.Sscanf(pci, "%04x:%02x:%02x.%d", &domain, &bus, &device, &function)
	return domain, bus, device<<3 | function
}

// macOf returns the configured address of a device, or a locally administered one. A sub-function
// has the PCI address of its parent, but a MAC address of its own.
func macOf(config *Device) [6]byte {
	if config.MAC != ([6]byte{}) {
		return config.MAC
	}
	domain, bus, function := pciNumbers(config.PCI)
	mac := [6]byte{0x02, 0, byte(domain >> 8), byte(domain), bus, function}
	if config.Type == SubFunction {
		mac[1] = byte(1 + config.SFIndex%0xff)
	}
	return mac
}

// linkLocal returns the IPv6 address that an interface gives itself.
func linkLocal(mac [6]byte) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: mac[0] ^ 2, 9: mac[1], 10: mac[2],
		11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4], 15: mac[5]})
}

// vhca returns the number of a function in its device, which the host and the DPU agree about.
func vhca(configured *uint16, pci string, kind FunctionType, index uint32) uint16 {
	if configured != nil {
		return *configured
	}
	domain, bus, function := pciNumbers(pci)
	id := domain ^ (uint16(bus)<<8 | uint16(function))
	if kind == SubFunction {
		id ^= uint16(0x80 | index&0x7f)
	}
	return id
}
