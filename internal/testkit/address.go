// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
)

// addresses counts the addresses that this process has tried.
var addresses atomic.Uint32

// Address returns an address of the loopback interface that only this test has until it ends, so
// that nobody else takes a port while a server of the test restarts.
//
// A socket of the abstract namespace, which bears the name of the address, reserves it: like the
// loopback interface it belongs to a network namespace, and it goes with its process.
func Address(t testing.TB) netip.Addr {
	t.Helper()
	for range 1 << 16 {
		// Processes that run at the same time begin at different places, and so rarely meet.
		n := uint32(os.Getpid())<<6 + addresses.Add(1)
		address := netip.AddrFrom4([4]byte{127, 64 | byte(n>>16)&63, byte(n >> 8), byte(n)})
		reservation, err := net.Listen("unix", fmt.Sprintf("@zc-relay-test/%v", address))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			t.Fatalf("reserve the loopback address %v: %v", address, err)
		}
		t.Cleanup(func() { _ = reservation.Close() })
		return address
	}
	t.Fatal("all loopback addresses are reserved by other tests")
	panic("unreachable")
}

// Endpoint returns port 0 of an address that only this test has, to listen on.
func Endpoint(t testing.TB) netip.AddrPort {
	t.Helper()
	return netip.AddrPortFrom(Address(t), 0)
}
