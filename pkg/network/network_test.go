package network_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/pkg/network"
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

func TestTheSourceAddressOfLoopbackIsLoopback(t *testing.T) {
	source, err := network.Kernel{}.SourceAddress(netip.AddrPortFrom(loopback, 1))
	if err != nil || source != loopback {
		t.Errorf("source address %v, %v", source, err)
	}
}
