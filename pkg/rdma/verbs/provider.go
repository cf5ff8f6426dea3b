//go:build verbs

package verbs

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/Mellanox/rdmamap"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs/internal/ibv"
	"github.com/zc-relay/zc-relay/pkg/status"
)

type provider struct {
	options Options
	system  system
}

// New makes the provider. Whether there is a device only Open tells.
func New(options Options) (rdma.Provider, error) {
	options = options.withDefaults()
	if err := options.validate(); err != nil {
		return nil, fmt.Errorf("rdma provider verbs: %w", err)
	}
	return &provider{options: options, system: localMachine{}}, nil
}

// Name implements rdma.Provider.
func (p *provider) Name() string { return ProviderName }

// Open implements rdma.Provider. With an unspecified address the address
// follows from Options.Device and Options.GIDIndex; without these there must
// be exactly one RDMA device.
func (p *provider) Open(address netip.Addr) (rdma.Device, error) {
	d, err := p.open(address)
	if err != nil {
		return nil, fmt.Errorf("open verbs device at %v: %w", address, err)
	}
	return d, nil
}

func (p *provider) open(address netip.Addr) (*device, error) {
	if !address.IsValid() {
		return nil, status.Errorf(status.InvalidValue, "no address given")
	}
	name, err := resolveDevice(p.system, p.options.Device)
	if err != nil {
		return nil, err
	}
	channel, err := ibv.NewChannel()
	if err != nil {
		return nil, err
	}
	place, err := p.locate(channel, name, address.Unmap())
	if err != nil {
		channel.Close()
		return nil, err
	}
	context, err := ibv.Open(place.device)
	if err != nil {
		channel.Close()
		return nil, err
	}
	d, err := newDevice(place, p.options, context, channel)
	if err != nil {
		channel.Close()
		return nil, errors.Join(err, context.Close())
	}
	return d, nil
}

// locate finds the device of an address, or the address of a device. The
// connection manager has the last word on which device an address leads to.
func (p *provider) locate(channel *ibv.Channel, name string, address netip.Addr) (location, error) {
	if !address.IsUnspecified() {
		place, err := bindTo(channel, address)
		if err == nil && name != "" && name != place.device {
			err = status.Errorf(status.NotFound, "%v belongs to RDMA device %s, not to %s: choose an address of %s or another device",
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

// location is where connections are made: a port of a device, by an address.
type location struct {
	device  string
	port    uint8
	address netip.Addr
}

// bindTo asks the connection manager which device has an address.
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
		err = status.Errorf(status.NotFound, "%v is not an address of an RDMA device: see `rdma link` and `ip address`", address)
	}
	return place, errors.Join(err, id.Destroy())
}

// firstAddress looks through the machine's addresses for one that leads to
// the device.
func firstAddress(channel *ibv.Channel, s system, name string) (location, error) {
	for _, address := range s.addresses() {
		if place, err := bindTo(channel, address); err == nil && place.device == name {
			return place, nil
		}
	}
	return location{}, status.Errorf(status.NotFound, "RDMA device %s has no IP address: give its network interface one", name)
}

// defaultPort is the port of a device whose address is asked for by GID index.
const defaultPort = 1

// addressOfGID is the address in an entry of a device's GID table.
func addressOfGID(name string, index int) (netip.Addr, error) {
	context, err := ibv.Open(name)
	if err != nil {
		return netip.Addr{}, err
	}
	gid, err := context.GID(defaultPort, index)
	return netip.AddrFrom16(gid).Unmap(), errors.Join(err, context.Close())
}

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
		return "", status.Errorf(status.NotFound, "%q is neither an RDMA device nor a network interface: %s", name, deviceList(devices))
	}
	if device := s.deviceOf(name); device != "" {
		return device, nil
	}
	return "", status.Errorf(status.NotFound, "network interface %s has no RDMA device: %s", name, deviceList(devices))
}

// onlyDevice is the RDMA device of a machine that has just one.
func onlyDevice(s system) (string, error) {
	devices := s.devices()
	if len(devices) == 1 {
		return devices[0], nil
	}
	if len(devices) == 0 {
		return "", status.Errorf(status.NotFound, "%s", deviceList(devices))
	}
	return "", status.Errorf(status.NotFound, "neither address nor device says which RDMA device is meant: %s", deviceList(devices))
}

func deviceList(devices []string) string {
	if len(devices) == 0 {
		return "this machine has no RDMA device (see `rdma link`)"
	}
	return "the RDMA devices are " + strings.Join(devices, ", ")
}

// localMachine asks rdmamap, whose paths are fixed, and the net package.
type localMachine struct{}

func (localMachine) devices() []string {
	devices := rdmamap.GetRdmaDeviceList()
	slices.Sort(devices)
	return devices
}

// rdmamap reports an InfiniBand interface without device by "" and an
// Ethernet one by an error, and the causes of its errors do not help.
func (localMachine) deviceOf(networkInterface string) string {
	device, err := rdmamap.GetRdmaDeviceForNetdevice(networkInterface)
	if err != nil {
		return ""
	}
	return device
}

func (localMachine) isInterface(name string) bool {
	_, err := net.InterfaceByName(name)
	return err == nil
}

func (localMachine) addresses() []netip.Addr {
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
