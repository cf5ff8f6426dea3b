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
	for name, address := range map[string]string{"IPv4": "127.0.0.1", "IPv6": "::1"} {
		t.Run(name, func(t *testing.T) {
			rdmatest.Run(t, rdmatest.Config{
				Provider: iwarp.New(iwarp.Options{}), Address: netip.MustParseAddr(address),
			})
		})
	}
	t.Run("CRC", func(t *testing.T) {
		rdmatest.Run(t, rdmatest.Config{
			Provider: iwarp.New(iwarp.Options{CRC: true}),
			Address:  netip.MustParseAddr("127.0.0.1"),
		})
	})
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
