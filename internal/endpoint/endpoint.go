// SPDX-License-Identifier: Apache-2.0

// Package endpoint finds addresses that the kernel would reject with nothing but EINVAL.
package endpoint

import (
	"net"
	"net/netip"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// MaxSocketPath is the most bytes of the path of a Unix socket (unix(7)).
const MaxSocketPath = 107

// CheckSocketPath returns an error if a path is too long for a Unix socket.
func CheckSocketPath(path string) error {
	if len(path) <= MaxSocketPath {
		return nil
	}
	return status.Errorf(status.InvalidValue, "the path of a Unix socket can have %d bytes at most, and "+
		"this one has %d: choose a shorter one, for instance below /run", MaxSocketPath, len(path))
}

// CheckZone returns an error if an address needs a zone and has none.
func CheckZone(address netip.Addr) error {
	if !address.Is6() || address.Is4In6() || address.Zone() != "" ||
		!address.IsLinkLocalUnicast() && !address.IsLinkLocalMulticast() {
		return nil
	}
	return status.Errorf(status.InvalidValue, "is a link-local address, which needs the name of the "+
		"network interface: write for instance %v%%eth0 (ip -6 address shows it)", address)
}

// CheckHost is CheckZone for the address in HOST:PORT. It accepts names, and every other text.
func CheckHost(hostPort string) error {
	host, _, err := net.SplitHostPort(hostPort)
	if err != nil {
		return nil
	}
	address, err := netip.ParseAddr(host)
	if err != nil {
		return nil
	}
	return CheckZone(address)
}
