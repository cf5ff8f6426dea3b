// SPDX-License-Identifier: Apache-2.0

//go:build cgo

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

// open opens a device, closes it, and returns its capabilities.
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

// interfaceOf returns the name of the network interface that has the address.
func interfaceOf(t *testing.T, address netip.Addr) string {
	t.Helper()
	interfaces, err := net.Interfaces()
	must(t, err)
	for _, i := range interfaces {
		addresses, err := i.Addrs()
		must(t, err)
		for _, a := range addresses {
			prefix, err := netip.ParsePrefix(a.String())
			if err == nil && prefix.Addr() == address {
				return i.Name
			}
		}
	}
	t.Fatalf("no network interface has address %v", address)
	return ""
}

func TestDeviceNameDeterminesAddress(t *testing.T) {
	for name := range testDevices(t) {
		if _, err := open(t, verbs.Options{Device: name}, netip.IPv4Unspecified()); err != nil {
			t.Error(err)
		}
	}
}

func TestAddressOfAnotherDeviceIsRejected(t *testing.T) {
	devices := testDevices(t)
	for name := range devices {
		for other, address := range devices {
			_, err := open(t, verbs.Options{Device: name}, address)
			if (err == nil) != (name == other) || err != nil && !errors.Is(err, status.NotFound) {
				t.Errorf("open device %s at the address of %s: %v", name, other, err)
			}
		}
	}
}

func TestInterfaceAndGIDDetermineRoCEAddress(t *testing.T) {
	for _, address := range testDevices(t) {
		capabilities, err := open(t, verbs.Options{}, address)
		must(t, err)
		if capabilities.Transport != "roce" {
			continue
		}
		network := interfaceOf(t, address)
		if _, err := open(t, verbs.Options{Device: network}, netip.IPv4Unspecified()); err != nil {
			t.Errorf("open interface %s: %v", network, err)
		}
		ipv4 := 1 // the IPv4 address; index 0 is the link-local one
		newLink(t, verbs.Options{Device: network, GIDIndex: &ipv4}, address)
	}
}

func TestConnectionsWorkWithConfiguredSettings(t *testing.T) {
	for _, address := range testDevices(t) {
		options := verbs.Options{PathMTU: 1024, TypeOfService: 104, RetryCount: 3, RNRRetryCount: 1}
		l := newLink(t, options, address)
		l.x.bytes[65535] = 0xa5
		l.x.transfer(t, l.y, rdma.OpWrite, 1, 65536)
		l.await(l.x, 1)
		l.x.transfer(t, l.y, rdma.OpRead, 1, 65536) // after the Write
		l.await(l.x, 1)
		if l.y.bytes[65535] != 0xa5 {
			t.Error("the Read completed before the data of the Write was placed")
		}
	}
}

func TestGIDOfAnotherAddressIsRejected(t *testing.T) {
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
			t.Error("connected although the GID index belongs to another address")
		}
		if err := <-accepted; !errors.Is(err, status.BadConfig) {
			t.Errorf("Accept returned %v, want %v", err, status.BadConfig)
		}
		must(t, listener.Close())
	}
}
