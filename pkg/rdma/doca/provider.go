// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package doca

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/pci"
	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/softrdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// maxReadDepth bounds the Reads of a connection. libdoca does not tell the device's limit, and
// queues what exceeds it.
const maxReadDepth = 1024

type provider struct {
	options Options
}

// New returns a provider. It opens no library until Open is called.
func New(options Options) rdma.Provider {
	if options.Loader == nil {
		options.Loader = doca.System()
	}
	if options.Logger == nil {
		options.Logger = zap.NewNop()
	}
	return &provider{options}
}

func (p *provider) Name() string { return ProviderName }

// device implements rdma.DetailsDevice.
type device struct {
	softrdma.Device
	log          *zap.Logger
	doca         *doca.Device
	capabilities doca.RDMACapabilities
	options      Options
	gid          *uint32 // in the device's GID table; nil if libdoca chooses
	gidText      string  // what gid denotes, for errors
	// maxMessageSize is that of Capabilities, in bytes.
	maxMessageSize uint32
	wait           bool
	closed         sync.Once
	closeErr       error
}

// validate rejects values that no device can use.
func (o *Options) validate() error {
	switch {
	case o.GIDIndex != nil && (*o.GIDIndex < 0 || *o.GIDIndex > math.MaxUint16):
		return status.Errorf(status.InvalidValue, "GID index %d is not between 0 and %d", *o.GIDIndex,
			math.MaxUint16)
	case !slices.Contains([]int{0, 256, 512, 1024, 2048, 4096}, o.PathMTU):
		return status.Errorf(status.InvalidValue,
			"path MTU %d is none of 256, 512, 1024, 2048, and 4096", o.PathMTU)
	case o.RNRRetryCount < 0 || o.RNRRetryCount > 7:
		return status.Errorf(status.InvalidValue, "RNR retry count %d is not between 1 and 7",
			o.RNRRetryCount)
	}
	return nil
}

// Open opens the device of Options.Device, or the one with the address.
func (p *provider) Open(address netip.Addr) (rdma.Device, error) {
	if err := p.options.validate(); err != nil {
		return nil, fmt.Errorf("open doca device at %v: %w", address, err)
	}
	library, err := p.options.Loader.Library()
	if err == nil {
		err = library.NeedRDMA()
	}
	if err != nil {
		return nil, fmt.Errorf("open doca device at %v: %w", address, err)
	}
	d := &device{log: p.options.Logger, options: p.options,
		wait: library.CanWait() && !p.options.NeverWait}
	err = d.Device.Open(ProviderName, maxReadDepth, network.Kernel{}, address, nil)
	if err != nil {
		return nil, err
	}
	name, err := p.choose(library, address)
	if err == nil {
		d.doca, err = library.OpenDevice(name)
	}
	if err != nil {
		return nil, fmt.Errorf("open doca device at %v: %w", address, err)
	}
	if d.capabilities, err = d.doca.RDMACapabilities(); err == nil && !d.capabilities.Supported {
		err = status.Errorf(status.NotSupported, "DOCA device %v cannot do RDMA: name one "+
			"that can with rdma.device (--rdma-device), such as the sub-function of the port", d.doca)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open doca device at %v: %w", address, err),
			d.doca.Close())
	}
	d.maxMessageSize = uint32(d.Capabilities().MaxMessageSize)
	known := deviceOf(d.doca)
	if p.options.GIDIndex != nil {
		d.gid = new(uint32(*p.options.GIDIndex))
	} else {
		d.gid = gidOf(d.doca, known, address)
	}
	d.gidText = describeGID(d.doca, known, d.gid)
	return d, nil
}

// choose returns the name of the device to open.
func (p *provider) choose(library *doca.Library, address netip.Addr) (string, error) {
	if p.options.Device != "" {
		return p.options.Device, nil
	}
	devices, err := library.Devices()
	if err != nil {
		return "", err
	}
	return deviceAt(devices, address)
}

// deviceAt returns the name of the device that has an address.
func deviceAt(devices []doca.DeviceInfo, address netip.Addr) (string, error) {
	for i := range devices {
		if hasAddress(devices[i].InterfaceName, address) {
			return devices[i].Name(), nil
		}
	}
	// A device whose interface is in another network namespace, for instance, may have it.
	if len(devices) == 1 && !isInterface(devices[0].InterfaceName) {
		return devices[0].Name(), nil
	}
	return "", status.Errorf(status.NotFound, "none of the %d DOCA devices has the address: wait for "+
		"its sub-function, or name the device (rdma.device)", len(devices))
}

// isInterface reports whether the program sees a network interface of that name.
func isInterface(name string) bool {
	_, err := net.InterfaceByName(name)
	return err == nil
}

// hasAddress reports whether a network interface has an address.
func hasAddress(name string, address netip.Addr) bool {
	if name == "" {
		return false
	}
	card, err := net.InterfaceByName(name)
	if err != nil {
		return false
	}
	addresses, err := card.Addrs()
	if err != nil {
		return false
	}
	for _, a := range addresses {
		prefix, err := netip.ParsePrefix(a.String())
		if err == nil && prefix.Addr().Unmap() == address.Unmap() {
			return true
		}
	}
	return false
}

// Capabilities returns the limits. The completion of a Write means that the data has been placed,
// as on RoCE and InfiniBand, which libdoca drives.
func (d *device) Capabilities() rdma.Capabilities {
	c := d.Device.Capabilities()
	c.MaxSendRequests = min(c.MaxSendRequests, d.capabilities.MaxSends)
	c.MaxReceiveRequests = min(c.MaxReceiveRequests, d.capabilities.MaxReceives)
	c.MaxMessageSize = min(c.MaxMessageSize, d.capabilities.MaxMessageSize)
	c.WriteImpliesPlaced = true
	c.OpaqueMemory = true
	c.Device = memory.Device{PCI: pci.Normalize(d.doca.PCIAddress), RDMA: d.doca.IBName}
	return c
}

// NewCompletionQueue makes a completion queue.
func (d *device) NewCompletionQueue(capacity int) (rdma.CompletionQueue, error) {
	return softrdma.OpenQueue(&d.Device, capacity, func() (*completionQueue, error) {
		return newCompletionQueue(d, capacity)
	})
}

// Close fails with status.InUse while anything made on the device is open.
func (d *device) Close() error {
	if err := d.Device.Close(); err != nil {
		return err
	}
	d.closed.Do(func() { d.closeErr = d.doca.Close() })
	return d.closeErr
}
