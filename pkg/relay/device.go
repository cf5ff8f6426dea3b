package relay

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// deviceSet is the RDMA devices through which targets are reached, by their
// local addresses. They stay open until the relay ends.
type deviceSet struct {
	provider rdma.Provider

	mu      sync.Mutex
	devices map[netip.Addr]rdma.Device
}

func newDeviceSet(provider rdma.Provider) *deviceSet {
	return &deviceSet{provider: provider, devices: make(map[netip.Addr]rdma.Device)}
}

// at returns the device that has a local address.
func (d *deviceSet) at(source netip.Addr) (rdma.Device, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if device := d.devices[source]; device != nil {
		return device, nil
	}
	device, err := d.provider.Open(source)
	if err != nil {
		return nil, fmt.Errorf("open RDMA device at %v: %w", source, err)
	}
	d.devices[source] = device
	return device, nil
}

// close closes all devices. Nothing may use them any more.
func (d *deviceSet) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for source, device := range d.devices {
		errs = append(errs, device.Close())
		delete(d.devices, source)
	}
	return errors.Join(errs...)
}

// sourceAddress is the local address from which the target is reached.
func sourceAddress(target netip.AddrPort) (netip.Addr, error) {
	// A UDP socket is routed when it is connected; nothing is sent.
	connection, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(target))
	if err != nil {
		return netip.Addr{}, status.Errorf(status.NotConnected, "find the route to target %v: %w", target, err)
	}
	defer connection.Close()
	return connection.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}
