// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package verbs

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/Mellanox/rdmamap"

	"github.com/zc-relay/zc-relay/pkg/rdma/verbs/internal/ibv"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// location is a port of a device, and the address that selects it.
type location struct {
	device  string
	port    uint8
	address netip.Addr
}

// locate finds the device that has the given address or, if the address is unspecified, an address
// of the device called name. The connection manager decides which device an address selects.
func (p *provider) locate(
	channel *ibv.Channel, name string, address netip.Addr,
) (location, error) {
	if !address.IsUnspecified() {
		place, err := bindTo(channel, address)
		if err == nil && name != "" && name != place.device {
			err = status.Errorf(status.NotFound,
				"%v belongs to RDMA device %s, not to %s: use an address of %s, or another device",
				address, place.device, name, name)
		}
		return place, err
	}
	if name == "" {
		only, err := onlyDevice(p.system)
		if err != nil {
			return location{}, err
		}
		name = only
	}
	if p.options.GIDIndex != nil {
		var err error
		if address, err = addressOfGID(name, *p.options.GIDIndex); err != nil {
			return location{}, err
		}
		return bindTo(channel, address)
	}
	return firstAddress(channel, p.system, name)
}

// bindTo asks the connection manager which device an address selects.
func bindTo(channel *ibv.Channel, address netip.Addr) (location, error) {
	id, err := channel.NewID(0)
	if err != nil {
		return location{}, err
	}
	if err := id.Bind(netip.AddrPortFrom(address, 0)); err != nil {
		return location{}, errors.Join(err, id.Destroy())
	}
	place := location{device: id.DeviceName(), port: id.Port(), address: address}
	if place.device == "" {
		err = status.Errorf(status.NotFound,
			"no RDMA device has address %v: check `rdma link` and `ip address`", address)
	}
	return place, errors.Join(err, id.Destroy())
}

// firstAddress returns the first of the machine's addresses that selects the device called name.
func firstAddress(channel *ibv.Channel, s system, name string) (location, error) {
	for _, address := range s.addresses() {
		if place, err := bindTo(channel, address); err == nil && place.device == name {
			return place, nil
		}
	}
	return location{}, status.Errorf(status.NotFound,
		"RDMA device %s has no IP address: assign one to its network interface", name)
}

// gidPort is the port whose GID table determines the address.
const gidPort = 1

// addressOfGID returns the address in an entry of a device's GID table.
func addressOfGID(name string, index int) (netip.Addr, error) {
	context, err := ibv.Open(name)
	if err != nil {
		return netip.Addr{}, err
	}
	gid, err := context.GID(gidPort, index)
	return netip.AddrFrom16(gid).Unmap(), errors.Join(err, context.Close())
}

// resolveDevice finds an RDMA device by its own name or by the name of its network interface. It
// returns "" for "".
func resolveDevice(s system, name string) (string, error) {
	if name == "" {
		return "", nil
	}
	devices := s.devices()
	if slices.Contains(devices, name) {
		return name, nil
	}
	if !s.isInterface(name) {
		return "", status.Errorf(status.NotFound,
			"%q is neither an RDMA device nor a network interface: %s", name, describe(devices))
	}
	if device := s.deviceOf(name); device != "" {
		return device, nil
	}
	return "", status.Errorf(status.NotFound,
		"network interface %s has no RDMA device: %s", name, describe(devices))
}

// onlyDevice returns the RDMA device of a machine that has exactly one.
func onlyDevice(s system) (string, error) {
	devices := s.devices()
	if len(devices) == 1 {
		return devices[0], nil
	}
	if len(devices) == 0 {
		return "", status.Errorf(status.NotFound, "%s", describe(devices))
	}
	return "", status.Errorf(status.NotFound,
		"neither the address nor the option Device selects an RDMA device: %s", describe(devices))
}

// describe lists the machine's RDMA devices, for errors.
func describe(devices []string) string {
	if len(devices) == 0 {
		return "this machine has no RDMA device (check `rdma link`)"
	}
	return "the RDMA devices are " + strings.Join(devices, ", ")
}

// system lists the devices, network interfaces, and addresses of a machine. Tests replace it.
type system interface {
	// devices returns the names of the RDMA devices, sorted.
	devices() []string
	// deviceOf returns the RDMA device of a network interface, or "" if it has none.
	deviceOf(networkInterface string) string
	// isInterface reports whether a network interface has the name.
	isInterface(name string) bool
	// addresses returns the addresses of all network interfaces that are up, IPv4 first, without
	// loopback and link-local addresses.
	addresses() []netip.Addr
}

// localSystem implements system for this machine. rdmamap reads /sys at fixed paths.
type localSystem struct{}

func (localSystem) devices() []string {
	devices := rdmamap.GetRdmaDeviceList()
	slices.Sort(devices)
	return devices
}

// For an interface without an RDMA device, rdmamap returns "" on InfiniBand and an error on
// Ethernet. Its errors would not help users.
func (localSystem) deviceOf(networkInterface string) string {
	device, err := rdmamap.GetRdmaDeviceForNetdevice(networkInterface)
	if err != nil {
		return ""
	}
	return device
}

func (localSystem) isInterface(name string) bool {
	_, err := net.InterfaceByName(name)
	return err == nil
}

func (localSystem) addresses() []netip.Addr {
	networks, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	var addresses []netip.Addr
	for _, network := range networks {
		prefix, err := netip.ParsePrefix(network.String())
		if err != nil || prefix.Addr().IsLoopback() || prefix.Addr().IsLinkLocalUnicast() {
			continue
		}
		addresses = append(addresses, prefix.Addr().Unmap())
	}
	slices.SortStableFunc(addresses, func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() })
	return addresses
}
