// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package verbs

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// fakeSystem is a machine with the given devices and network interfaces.
type fakeSystem struct {
	names      []string
	interfaces map[string]string // name to RDMA device
}

func (s fakeSystem) devices() []string              { return s.names }
func (s fakeSystem) deviceOf(network string) string { return s.interfaces[network] }
func (s fakeSystem) addresses() []netip.Addr        { return nil }

func (s fakeSystem) isInterface(name string) bool {
	_, ok := s.interfaces[name]
	return ok
}

func TestDevicesAreFoundByNameOrInterface(t *testing.T) {
	s := fakeSystem{
		names:      []string{"mlx5_0", "rxe0"},
		interfaces: map[string]string{"eth0": "mlx5_0", "eth1": ""},
	}
	for name, want := range map[string]string{
		"": "", "rxe0": "rxe0", "mlx5_0": "mlx5_0", "eth0": "mlx5_0",
	} {
		if got, err := resolveDevice(s, name); err != nil || got != want {
			t.Errorf("%q resolves to %q, %v; want %q", name, got, err, want)
		}
	}
	for name, hint := range map[string]string{
		"eth1": "eth1 has no RDMA device", "nonsense": "mlx5_0, rxe0",
	} {
		_, err := resolveDevice(s, name)
		if !errors.Is(err, status.NotFound) || !strings.Contains(err.Error(), hint) {
			t.Errorf("%q: error %q does not match %v, or lacks %q",
				name, err, status.NotFound, hint)
		}
	}
}

func TestOneOfSeveralDevicesMustBeChosen(t *testing.T) {
	if got, err := onlyDevice(fakeSystem{names: []string{"rxe0"}}); err != nil || got != "rxe0" {
		t.Errorf("only device is %q, %v; want rxe0", got, err)
	}
	for hint, names := range map[string][]string{
		"no RDMA device": nil, "rxe0, siw0": {"rxe0", "siw0"},
	} {
		_, err := onlyDevice(fakeSystem{names: names})
		if !errors.Is(err, status.NotFound) || !strings.Contains(err.Error(), hint) {
			t.Errorf("%v: error %q does not match %v, or lacks %q",
				names, err, status.NotFound, hint)
		}
	}
}
