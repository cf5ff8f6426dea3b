// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package doca

import (
	"net/netip"
	"testing"

	"github.com/zc-relay/zc-relay/internal/rdmadevice"
)

// checkIndex fails the test unless an index is want, or nil if that is negative.
func checkIndex(t *testing.T, what string, got *uint32, want int) {
	t.Helper()
	switch {
	case got == nil && want >= 0:
		t.Errorf("%s: no GID, want %d", what, want)
	case got != nil && int(*got) != want:
		t.Errorf("%s: GID %d, want %d", what, *got, want)
	}
}

func TestTheGIDIsThatOfTheAddressForTheSecondVersionOfRoCE(t *testing.T) {
	table := []rdmadevice.GID{
		{Index: 0, GID: "fe80:0000:0000:0000:ba3f:d2ff:fea1:b2c4", Type: "IB/RoCE v1"},
		{Index: 1, GID: "fe80:0000:0000:0000:ba3f:d2ff:fea1:b2c4", Type: "RoCE v2"},
		{Index: 2, GID: "0000:0000:0000:0000:0000:ffff:c000:0205", Type: "IB/RoCE v1"},
		{Index: 3, GID: "0000:0000:0000:0000:0000:ffff:c000:0205", Type: "RoCE v2"},
		{Index: 6, GID: "2001:0db8:0000:0000:0000:0000:0000:0007", Type: "IB/RoCE v1"},
		{Index: 7, GID: "damaged", Type: "RoCE v2"},
	}
	var gids []netip.Addr
	for _, text := range []string{"fe80::1", "fe80::1", "192.0.2.5", "192.0.2.5", "::", "192.0.2.5"} {
		gids = append(gids, netip.MustParseAddr(text))
	}
	for address, want := range map[string][2]int{
		"192.0.2.5": {3, 3}, "::ffff:192.0.2.5": {3, 3}, "fe80::ba3f:d2ff:fea1:b2c4": {1, -1},
		"2001:db8::7": {-1, -1}, "192.0.2.6": {-1, -1}, "fe80::1": {-1, 1},
	} {
		a := netip.MustParseAddr(address)
		checkIndex(t, address+" in the kernel's table", gidInTable(table, a), want[0])
		checkIndex(t, address+" in libdoca's table", lastOfFirstRun(gids, a), want[1])
	}
}
