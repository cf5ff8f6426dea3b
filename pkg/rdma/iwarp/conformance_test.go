// SPDX-License-Identifier: Apache-2.0

package iwarp_test

import (
	"net/netip"
	"testing"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/pkg/network/networktest"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/rdma/rdmatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestProviderConformance(t *testing.T) {
	for name, test := range map[string]struct {
		address string
		crc     bool
	}{
		"IPv4": {"127.0.0.1", false}, "IPv6 with CRC": {"::1", true},
	} {
		t.Run(name, func(t *testing.T) {
			rdmatest.Run(t, rdmatest.Config{
				Provider: iwarp.New(iwarp.Options{CRC: test.crc}),
				Address:  netip.MustParseAddr(test.address),
			})
		})
	}
	for name, options := range map[string]iwarp.Options{
		"TLS": {}, "TLS with CRC": {CRC: true},
	} {
		t.Run(name, func(t *testing.T) {
			rdmatest.Run(t, rdmatest.Config{Address: netip.MustParseAddr("127.0.0.1"),
				Provider: rdmatest.OverTLS(t, iwarp.New(options))})
		})
	}
	t.Run("in memory", func(t *testing.T) {
		address := netip.MustParseAddr("10.0.0.1")
		network := networktest.New(networktest.Config{}).Host(address)
		rdmatest.Run(t, rdmatest.Config{
			Provider: iwarp.New(iwarp.Options{Network: network}), Address: address,
			Missing: map[rdmatest.Feature]string{
				rdmatest.Descriptor: "its streams are not the kernel's",
			},
		})
	})
}
