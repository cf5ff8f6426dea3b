//go:build verbs

package verbs

import (
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/Mellanox/rdmamap"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// system is what is asked of the machine to find devices by name.
type system interface {
	// devices lists the RDMA devices.
	devices() []string
	// deviceOf is the RDMA device of a network interface, "" if it has none.
	deviceOf(networkInterface string) string
	// isInterface tells whether there is a network interface of that name.
	isInterface(name string) bool
	// addresses are those of all network interfaces that are up, IPv4 first,
	// without loopback.
	addresses() []netip.Addr
}

// thisMachine asks rdmamap, whose paths are fixed, and the net package.
type thisMachine struct{}

func (thisMachine) devices() []string {
	devices := rdmamap.GetRdmaDeviceList()
	slices.Sort(devices)
	return devices
}

// rdmamap reports an InfiniBand interface without device by "" and an
// Ethernet one by an error, and the causes of its errors do not help.
func (thisMachine) deviceOf(networkInterface string) string {
	device, err := rdmamap.GetRdmaDeviceForNetdevice(networkInterface)
	if err != nil {
		return ""
	}
	return device
}

func (thisMachine) isInterface(name string) bool {
	_, err := net.InterfaceByName(name)
	return err == nil
}

func (thisMachine) addresses() []netip.Addr {
	networks, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	var addresses []netip.Addr
	for _, network := range networks {
		prefix, err := netip.ParsePrefix(network.String())
		if err == nil && !prefix.Addr().IsLoopback() && !prefix.Addr().IsLinkLocalUnicast() {
			addresses = append(addresses, prefix.Addr().Unmap())
		}
	}
	slices.SortStableFunc(addresses, func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() })
	return addresses
}

// resolveDevice finds the RDMA device that a user has named, by its own name
// or by that of its network interface. "" stays "".
func resolveDevice(s system, name string) (string, error) {
	if name == "" {
		return "", nil
	}
	devices := s.devices()
	if slices.Contains(devices, name) {
		return name, nil
	}
	if !s.isInterface(name) {
		return "", status.Errorf(status.NotFound, "%q is neither an RDMA device nor a network interface: %s", name, listing(devices))
	}
	if device := s.deviceOf(name); device != "" {
		return device, nil
	}
	return "", status.Errorf(status.NotFound, "network interface %s has no RDMA device: %s", name, listing(devices))
}

// onlyDevice is the RDMA device of a machine that has just one.
func onlyDevice(s system) (string, error) {
	devices := s.devices()
	if len(devices) == 1 {
		return devices[0], nil
	}
	if len(devices) == 0 {
		return "", status.Errorf(status.NotFound, "%s", listing(devices))
	}
	return "", status.Errorf(status.NotFound, "neither address nor device says which RDMA device is meant: %s", listing(devices))
}

func listing(devices []string) string {
	if len(devices) == 0 {
		return "this machine has no RDMA device (see `rdma link`)"
	}
	return "the RDMA devices are " + strings.Join(devices, ", ")
}
