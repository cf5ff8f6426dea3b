//go:build cgo

package doca

import (
	"net/netip"
	"strings"

	"github.com/zc-relay/zc-relay/internal/rdmadevice"
	"github.com/zc-relay/zc-relay/pkg/doca"
)

// gidOf returns the entry of a device's GID table for connections from an address, or nil to leave
// it to libdoca, which takes the first. That has the link-local address on most devices, which
// leads nowhere beyond a router. The kernel knows the version of RoCE of each entry, libdoca does
// not.
func gidOf(device *doca.Device, address netip.Addr) *uint32 {
	if address.IsUnspecified() {
		return nil
	}
	if tree, err := rdmadevice.Open(rdmadevice.SystemRoot); err == nil {
		devices, _ := tree.Devices() // with those that can be read
		for i := range devices {
			if d := &devices[i]; d.Name == device.IBName && len(d.Ports) > 0 {
				return gidInTable(d.Ports[0].GIDs, address)
			}
		}
	}
	gids, err := device.GIDs()
	if err != nil {
		return nil
	}
	return lastOfFirstRun(gids, address)
}

// gidInTable returns the entry with an address for RoCE v2, or nil.
func gidInTable(table []rdmadevice.GID, address netip.Addr) *uint32 {
	for _, g := range table {
		gid, err := netip.ParseAddr(g.GID)
		if err == nil && gid.Unmap() == address.Unmap() && strings.EqualFold(g.Type, "RoCE v2") {
			return new(uint32(g.Index))
		}
	}
	return nil
}

// lastOfFirstRun returns the last of the first adjacent entries with an address: devices list it
// for RoCE v1 and then for v2.
func lastOfFirstRun(gids []netip.Addr, address netip.Addr) (index *uint32) {
	for i, gid := range gids {
		if gid == address.Unmap() {
			index = new(uint32(i))
		} else if index != nil {
			break
		}
	}
	return index
}
