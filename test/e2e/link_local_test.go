// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

// linkLocalAddress returns an IPv6 address of this machine with a zone, or skips the test.
func linkLocalAddress(t *testing.T) netip.Addr {
	t.Helper()
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range interfaces {
		addresses, err := i.Addrs()
		if err != nil {
			t.Fatal(err)
		}
		for _, address := range addresses {
			prefix, err := netip.ParsePrefix(address.String())
			if err == nil && prefix.Addr().Is6() && prefix.Addr().IsLinkLocalUnicast() {
				return prefix.Addr().WithZone(i.Name)
			}
		}
	}
	t.Skip("no interface has an IPv6 link-local address")
	return netip.Addr{}
}

// TestAZoneIsKeptOnTheWholeWay reads through a relay and a gateway that are reached at a link-local
// address. The zone of such an address does not travel: each side adds its own.
func TestAZoneIsKeptOnTheWholeWay(t *testing.T) {
	t.Parallel()
	testkit.RequireTools(t, "nbdcopy")
	if len(targetFlags())+len(relayFlags()) > 0 {
		t.Skip("the flags choose another provider: this test needs the embedded provider")
	}
	address := linkLocalAddress(t)
	for _, provider := range []string{"iwarp", "auto"} {
		t.Run(provider, func(t *testing.T) {
			c := &chain{t: t, dir: t.TempDir(), volumes: []string{"disk=memory:1MiB"},
				address: netip.AddrPortFrom(address, 0)}
			c.startTarget("--rdma-provider", provider)
			c.relay = c.startRelay("comch", "--rdma-provider", provider)
			uri := c.mustServe(`PATH=/usr/bin:$PATH; echo "$uri"; nbdcopy "$uri" copy; test -s copy`,
				"--plain-text", "--listen", netip.AddrPortFrom(address, 0).String())
			if !strings.Contains(uri, "%25"+address.Zone()) {
				t.Errorf("the URI %s has no zone", uri)
			}
		})
	}
}
