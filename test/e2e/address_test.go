package e2e

import (
	"strings"
	"testing"
)

func TestRDMAConnectionsUseTheAddressesThatWereChosen(t *testing.T) {
	if len(targetFlags())+len(relayFlags()) > 0 {
		t.Skip("the loopback addresses belong to no RDMA device")
	}
	c := &chain{t: t, dir: t.TempDir(), volumes: []string{"disk=memory:16MiB"}, address: listenAddress()}
	c.startTarget("--rdma-address", "127.0.0.3")
	if address := c.rdmaAddress(); !strings.HasPrefix(address, "127.0.0.3:") {
		t.Errorf("the target takes RDMA connections at %s", address)
	}
	// The target refuses connections from elsewhere than announced.
	c.relay = c.startRelay("comch", "--rdma-address", "127.0.0.2")
	c.mustRun("verify", "--queues", "2", "--passes", "1", "--length", "2MiB")
}

func TestAnRDMAAddressThatCannotBeUsedIsExplained(t *testing.T) {
	for _, test := range []struct{ address, says string }{
		{"mlx5_0", `"mlx5_0" for "--rdma-address" flag: must be an IP address`},
		{"203.0.113.77", "open RDMA device at 203.0.113.77"}, // TEST-NET-3 is nobody's
		{"0.0.0.0", "not an address that the target can connect to"},
	} {
		relay := spawn(t, "zc-relay", "run", "--storage-server", "127.0.0.1:1", "--volume", "disk",
			"--emulated-dir", t.TempDir(), "--rdma-address", test.address)
		if code := relay.wait(); code == 0 {
			t.Errorf("--rdma-address %s: the relay ended with success", test.address)
		}
		if !strings.Contains(relay.stderr.String(), test.says) {
			t.Errorf("--rdma-address %s: the relay says %s", test.address, relay.stderr.String())
		}
	}
}
