package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"

	"github.com/zc-relay/zc-relay/internal/devicecall"
	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// deviceSet holds devices by their addresses. They stay open until the relay closes.
type deviceSet[A comparable, D io.Closer] struct {
	open func(address A) (D, error)

	mu      sync.Mutex
	devices map[A]*devicecall.Open[D]
}

type (
	rdmaDeviceSet = deviceSet[netip.Addr, rdma.Device]
	dmaDeviceSet  = deviceSet[string, dma.Device]
)

// newRDMADeviceSet returns the RDMA devices that connect to targets, by local address.
func newRDMADeviceSet(provider rdma.Provider) *rdmaDeviceSet {
	return &rdmaDeviceSet{
		devices: make(map[netip.Addr]*devicecall.Open[rdma.Device]),
		open: func(source netip.Addr) (rdma.Device, error) {
			device, err := provider.Open(source)
			if err != nil {
				return nil, fmt.Errorf("open RDMA device at %v: %w", source, err)
			}
			return device, nil
		},
	}
}

// newDMADeviceSet returns the DMA devices of channels with bounce buffers, by the address of the
// channel's Comch device. provider may be nil.
func newDMADeviceSet(provider dma.Provider) *dmaDeviceSet {
	return &dmaDeviceSet{
		devices: make(map[string]*devicecall.Open[dma.Device]),
		open: func(address string) (dma.Device, error) {
			if provider == nil {
				return nil, status.Errorf(status.NotSupported,
					"isolation %s needs a DMA provider, and the relay has none", Staged)
			}
			device, err := provider.Open(address)
			if err != nil {
				return nil, fmt.Errorf("isolation %s: open DMA device %s: %w", Staged, address, err)
			}
			return device, nil
		},
	}
}

// at returns the device at an address, and opens it if necessary. A device that does not answer
// delays only those who need it, until ctx ends.
func (d *deviceSet[A, D]) at(ctx context.Context, address A) (D, error) {
	d.mu.Lock()
	device := d.devices[address]
	if device == nil || device.HasFailed() {
		device = devicecall.NewOpen(func() (D, error) { return d.open(address) })
		d.devices[address] = device
	}
	d.mu.Unlock()
	return device.Await(ctx, fmt.Sprintf("open the device at %v", address))
}

// close closes all devices. They must not be in use.
func (d *deviceSet[A, D]) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for address, device := range d.devices {
		errs = append(errs, device.Close())
		delete(d.devices, address)
	}
	return errors.Join(errs...)
}
