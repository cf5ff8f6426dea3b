// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var loopback = netip.MustParseAddr("127.0.0.1")

func TestKernelStreamsCarryBytesAndTheirEnd(t *testing.T) {
	var kernel network.Network = network.Kernel{}
	listener, err := kernel.Listen(t.Context(), netip.AddrPortFrom(loopback, 0))
	if err != nil {
		t.Fatal(err)
	}
	local, err := kernel.Dial(t.Context(), loopback, listener.Address())
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	remote, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer remote.Close()
	if got := network.AddressOf(remote.RemoteAddr()); got != network.AddressOf(local.LocalAddr()) {
		t.Errorf("the peer's address is %v, want %v", got, local.LocalAddr())
	}
	if _, err := local.Write([]byte("request")); err != nil {
		t.Fatal(err)
	}
	if err := local.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(remote); err != nil || string(got) != "request" {
		t.Errorf("read %q, %v", got, err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := listener.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after Close: %v", err)
	}
}

func TestAConnectionToItselfIsRefused(t *testing.T) {
	var reserve network.Kernel
	listener, err := reserve.Listen(t.Context(), netip.AddrPortFrom(loopback, 0))
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Address()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	// The dialing socket gets the port that it dials, as the kernel may choose it.
	kernel := network.Kernel{Control: func(_, _ string, raw syscall.RawConn) error {
		return bindTo(raw, address)
	}}
	if stream, err := kernel.Dial(t.Context(), netip.Addr{}, address); !errors.Is(err,
		status.NotConnected) {
		t.Errorf("dialing a port that nobody listens on returned %v, %v", stream, err)
	}
	if listener, err = reserve.Listen(t.Context(), address); err != nil {
		t.Fatalf("the port is still in use: %v", err)
	}
	_ = listener.Close()
}

// bindTo binds a socket to an IPv4 address, which may be that of a closed connection.
func bindTo(raw syscall.RawConn, address netip.AddrPort) (err error) {
	controlErr := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		if err == nil {
			err = unix.Bind(int(fd), &unix.SockaddrInet4{Port: int(address.Port()),
				Addr: address.Addr().As4()})
		}
	})
	return errors.Join(controlErr, err)
}

func TestTheSourceAddressOfLoopbackIsLoopback(t *testing.T) {
	source, err := network.Kernel{}.SourceAddress(netip.AddrPortFrom(loopback, 1))
	if err != nil || source != loopback {
		t.Errorf("source address %v, %v", source, err)
	}
}

func TestAnIPv4WildcardAcceptsNothingOverIPv6(t *testing.T) {
	probe, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		t.Skipf("no IPv6 here: %v", err)
	}
	if err := probe.Close(); err != nil {
		t.Error(err)
	}
	for wildcard, hasIPv6 := range map[string]bool{"0.0.0.0:0": false, "[::]:0": true} {
		streams, err := network.Kernel{}.Listen(t.Context(), netip.MustParseAddrPort(wildcard))
		if err != nil {
			t.Fatal(err)
		}
		defer streams.Close()
		strangers, err := network.ListenTCP(wildcard)
		if err != nil {
			t.Fatal(err)
		}
		defer strangers.Close()
		for _, port := range []uint16{streams.Address().Port(),
			network.AddressOf(strangers.Addr()).Port()} {
			for host, accepts := range map[string]bool{"127.0.0.1": true, "::1": hasIPv6} {
				address := netip.AddrPortFrom(netip.MustParseAddr(host), port).String()
				connection, err := net.Dial("tcp", address)
				if (err == nil) != accepts {
					t.Errorf("%s accepts a connection to %s: %v", wildcard, address, err)
				}
				if err == nil {
					_ = connection.Close()
				}
			}
		}
	}
}

func TestAnAddressIsFreeUntilSomebodyListens(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1", "::"} {
		listener, err := network.Kernel{}.Listen(t.Context(),
			netip.AddrPortFrom(netip.MustParseAddr(host), 0))
		if err != nil {
			t.Logf("no %s here: %v", host, err)
			continue
		}
		address := listener.Address()
		free := network.CheckFree(address)
		_, want := network.Kernel{}.Listen(t.Context(), address)
		isSame := free != nil && want != nil &&
			(free.Error() == want.Error() || address.Addr().IsUnspecified())
		if !errors.Is(free, syscall.EADDRINUSE) || !isSame {
			t.Errorf("the error of %v is %q, want %q", address, free, want)
		}
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		if err := network.CheckFree(netip.AddrPortFrom(address.Addr(), 0)); err != nil {
			t.Errorf("any port of %v: %v", address.Addr(), err)
		}
	}
	foreign := netip.MustParseAddrPort("192.0.2.77:0")
	if err := network.CheckFree(foreign); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("an address of another machine: %v", err)
	}
}
