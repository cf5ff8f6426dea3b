// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package doca

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/zc-relay/zc-relay/internal/rdmadevice"
	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// gidOf returns the entry of a device's GID table for connections from an address, or nil to leave
// it to libdoca, which takes the first. That has the link-local address on most devices, which
// leads nowhere beyond a router. The kernel knows the version of RoCE of each entry, libdoca does
// not. known is what the kernel knows of the device (deviceOf).
func gidOf(device *doca.Device, known *rdmadevice.Device, address netip.Addr) *uint32 {
	if address.IsUnspecified() {
		return nil
	}
	if known != nil {
		return gidInTable(known.Ports[0].GIDs, address)
	}
	gids, err := device.GIDs()
	if err != nil {
		return nil
	}
	return lastOfFirstRun(gids, address)
}

// deviceOf returns what the kernel knows of a device that has a port; nil if it does not know it.
func deviceOf(device *doca.Device) *rdmadevice.Device {
	tree, err := rdmadevice.Open(rdmadevice.SystemRoot)
	if err != nil {
		return nil
	}
	devices, _ := tree.Devices() // with those that can be read
	for i := range devices {
		if d := &devices[i]; d.Name == device.IBName && len(d.Ports) > 0 {
			return d
		}
	}
	return nil
}

// describeGID returns which entry of its GID table a device uses: "GID 3 (10.0.0.2, RoCE v2) of
// mlx5_2".
func describeGID(device *doca.Device, known *rdmadevice.Device, index *uint32) string {
	name := device.Name()
	if index == nil {
		return "the first GID of " + name + ", which libdoca takes"
	}
	empty := fmt.Sprintf("GID %d of %s, which is empty", *index, name)
	if known != nil {
		for _, g := range known.Ports[0].GIDs {
			if address, err := netip.ParseAddr(g.GID); err == nil && g.Index == int(*index) {
				return fmt.Sprintf("GID %d (%v, %s) of %s", *index, address.Unmap(), g.Type, name)
			}
		}
		return empty
	}
	gids, err := device.GIDs()
	switch {
	case err != nil:
		return fmt.Sprintf("GID %d of %s", *index, name)
	case int64(*index) >= int64(len(gids)) || gids[*index].IsUnspecified():
		return empty
	}
	return fmt.Sprintf("GID %d (%v) of %s", *index, gids[*index], name)
}

// withGID adds to an error of libdoca about a connection which GID this side has. With a wrong one,
// packets lead nowhere, and libdoca says no more than that time has passed.
func (d *device) withGID(err error) error {
	if err == nil || !isOfTheNetwork(status.CodeOf(err)) {
		return err
	}
	return fmt.Errorf("%w: from %s: zc-relay devices lists the GIDs, and rdma.gid_index "+
		"(--rdma-gid-index) selects one", err, d.gidText)
}

// isOfTheNetwork reports whether libdoca can have failed because the peer was not reached.
func isOfTheNetwork(code status.Code) bool {
	switch code {
	case status.TimeOut, status.NotConnected, status.ConnectionReset, status.ConnectionAborted,
		status.IOFailed, status.Driver:
		return true
	}
	return false
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
