package e2e

import (
	"net/netip"
	"os"
	"strings"
)

// The suite can be told to run on other programs, over another network
// address, and with other flags, for instance those of another RDMA provider
// (test/verbs/run.sh does).
const (
	programsVariable    = "ZC_RELAY_E2E_PROGRAMS"     // directory of programs that are built already
	addressVariable     = "ZC_RELAY_E2E_ADDRESS"      // where targets listen
	targetFlagsVariable = "ZC_RELAY_E2E_TARGET_FLAGS" // more flags, separated by spaces
	relayFlagsVariable  = "ZC_RELAY_E2E_RELAY_FLAGS"
)

// listenAddress is where targets listen, with a port of their choice.
func listenAddress() netip.AddrPort {
	if address := os.Getenv(addressVariable); address != "" {
		return netip.AddrPortFrom(netip.MustParseAddr(address), 0)
	}
	return netip.MustParseAddrPort("127.0.0.1:0")
}

func targetFlags() []string { return strings.Fields(os.Getenv(targetFlagsVariable)) }

func relayFlags() []string { return strings.Fields(os.Getenv(relayFlagsVariable)) }
