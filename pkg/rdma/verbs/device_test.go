//go:build verbs

package verbs_test

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// open opens and closes a device and returns its capabilities.
func open(t *testing.T, options verbs.Options, address netip.Addr) (rdma.Capabilities, error) {
	t.Helper()
	provider, err := verbs.New(options)
	must(t, err)
	device, err := provider.Open(address)
	if err != nil {
		return rdma.Capabilities{}, err
	}
	defer func() { must(t, device.Close()) }()
	return device.Capabilities(), nil
}

// interfaceOf is the network interface with the address.
func interfaceOf(t *testing.T, address netip.Addr) string {
	t.Helper()
	interfaces, err := net.Interfaces()
	must(t, err)
	for _, i := range interfaces {
		addresses, err := i.Addrs()
		must(t, err)
		for _, a := range addresses {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil && prefix.Addr() == address {
				return i.Name
			}
		}
	}
	t.Fatalf("no interface has address %v", address)
	return ""
}

func TestADeviceIsOpenedByItsNameAlone(t *testing.T) {
	for name := range testDevices(t) {
		if _, err := open(t, verbs.Options{Device: name}, netip.IPv4Unspecified()); err != nil {
			t.Error(err)
		}
	}
}

func TestTheAddressOfAnotherDeviceIsRefused(t *testing.T) {
	devices := testDevices(t)
	for name := range devices {
		for other, address := range devices {
			_, err := open(t, verbs.Options{Device: name}, address)
			if (err == nil) != (name == other) || err != nil && !errors.Is(err, status.NotFound) {
				t.Errorf("device %s at the address of %s: %v", name, other, err)
			}
		}
	}
}

func TestRoCEDevicesAreOpenedByInterfaceAndByGID(t *testing.T) {
	for _, address := range testDevices(t) {
		capabilities, err := open(t, verbs.Options{}, address)
		must(t, err)
		if capabilities.Transport != "roce" {
			continue
		}
		network := interfaceOf(t, address)
		if _, err := open(t, verbs.Options{Device: network}, netip.IPv4Unspecified()); err != nil {
			t.Errorf("interface %s: %v", network, err)
		}
		ipv4 := 1 // the entry of the IPv4 address, behind that of the link-local one
		newLink(t, verbs.Options{Device: network, GIDIndex: &ipv4}, address)
	}
}

func TestConnectionsTakeTheConfiguredSettings(t *testing.T) {
	for _, address := range testDevices(t) {
		options := verbs.Options{PathMTU: 1024, TypeOfService: 104, RetryCount: 3, RNRRetryCount: 1}
		l := newLink(t, options, address)
		l.x.bytes[65535] = 0xa5
		l.x.transfer(t, l.y, rdma.OpWrite, 1, 65536)
		l.await(l.x, 1)
		l.x.transfer(t, l.y, rdma.OpRead, 1, 65536) // behind the Write
		l.await(l.x, 1)
		if l.y.bytes[65535] != 0xa5 {
			t.Error("the data has not arrived")
		}
	}
}

func TestAGIDOfAnotherAddressIsRefused(t *testing.T) {
	for _, address := range testDevices(t) {
		capabilities, err := open(t, verbs.Options{}, address)
		must(t, err)
		if capabilities.Transport != "roce" {
			continue
		}
		linkLocal := 0
		provider, err := verbs.New(verbs.Options{GIDIndex: &linkLocal})
		must(t, err)
		device, err := provider.Open(address)
		must(t, err)
		t.Cleanup(func() { must(t, device.Close()) })
		l := &link{t: t, device: device}
		s := l.newSide()
		listener, err := device.Listen(t.Context(), netip.AddrPortFrom(address, 0))
		must(t, err)
		accepted := make(chan error, 1)
		go func() {
			request, err := listener.Accept(t.Context())
			if err == nil {
				_, err = request.Accept(t.Context(), s.config())
			}
			accepted <- err
		}()
		if _, err := device.Connect(t.Context(), listener.Address(), s.config()); err == nil {
			t.Error("connected in spite of another GID index")
		}
		if err := <-accepted; !errors.Is(err, status.BadConfig) {
			t.Errorf("accept: %v", err)
		}
		must(t, listener.Close())
	}
}
