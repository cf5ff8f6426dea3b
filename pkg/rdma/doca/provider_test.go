// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package doca

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// The port is not taken for a sub-function that has the address and is not there yet.
func TestADeviceHasTheAddressOfItsInterface(t *testing.T) {
	here := doca.DeviceInfo{IBName: "here", InterfaceName: "lo"}
	elsewhere := doca.DeviceInfo{IBName: "elsewhere", InterfaceName: "not-here"}
	for name, test := range map[string]struct {
		devices []doca.DeviceInfo
		address string
		want    string // "" for none
	}{
		"its own":                        {[]doca.DeviceInfo{elsewhere, here}, "127.0.0.1", "here"},
		"another one":                    {[]doca.DeviceInfo{here}, "192.0.2.1", ""},
		"one that cannot be seen":        {[]doca.DeviceInfo{elsewhere}, "192.0.2.1", "elsewhere"},
		"one of two that cannot be seen": {[]doca.DeviceInfo{elsewhere, elsewhere}, "192.0.2.1", ""},
		"no device":                      {nil, "127.0.0.1", ""},
	} {
		got, err := deviceAt(test.devices, netip.MustParseAddr(test.address))
		if got != test.want || (err != nil) != (test.want == "") ||
			err != nil && !errors.Is(err, status.NotFound) {
			t.Errorf("%s: device %q, error %v, want %q", name, got, err, test.want)
		}
	}
}
