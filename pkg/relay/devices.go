package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/internal/devicecall"
	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// deviceSet holds devices by their addresses. They stay open until the relay closes, or until they
// are lost.
type deviceSet[A comparable, D io.Closer] struct {
	open func(address A) (D, error)
	// lost returns a channel that is closed when a device has failed for good, or nil.
	lost     func(D) <-chan struct{}
	watching sync.WaitGroup
	closing  chan struct{}

	mu      sync.Mutex // guards what follows
	devices map[A]*devicecall.Open[D]
	// retired holds lost devices that are still in use.
	retired map[*devicecall.Open[D]]struct{}
}

type (
	rdmaDeviceSet = deviceSet[netip.Addr, rdma.Device]
	dmaDeviceSet  = deviceSet[string, dma.Device]
)

// newRDMADeviceSet returns the RDMA devices that connect to targets, by local address.
func newRDMADeviceSet(provider rdma.Provider) *rdmaDeviceSet {
	return newDeviceSet(rdma.Lost, func(source netip.Addr) (rdma.Device, error) {
		device, err := provider.Open(source)
		if err != nil {
			return nil, fmt.Errorf("open RDMA device at %v: %w", source, err)
		}
		return device, nil
	})
}

// newDMADeviceSet returns the DMA devices of channels with bounce buffers, by the address of the
// channel's Comch device. provider may be nil.
func newDMADeviceSet(provider dma.Provider) *dmaDeviceSet {
	neverLost := func(dma.Device) <-chan struct{} { return nil }
	return newDeviceSet(neverLost, func(address string) (dma.Device, error) {
		if provider == nil {
			return nil, status.Errorf(status.NotSupported,
				"isolation %s needs a DMA provider, and the relay has none", Staged)
		}
		device, err := provider.Open(address)
		if err != nil {
			return nil, fmt.Errorf("isolation %s: open DMA device %s: %w", Staged, address, err)
		}
		return device, nil
	})
}

func newDeviceSet[A comparable, D io.Closer](
	lost func(D) <-chan struct{}, open func(A) (D, error),
) *deviceSet[A, D] {
	return &deviceSet[A, D]{
		open: open, lost: lost, closing: make(chan struct{}),
		devices: make(map[A]*devicecall.Open[D]),
		retired: make(map[*devicecall.Open[D]]struct{}),
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
		d.watching.Go(func() { d.watch(address, device) })
	}
	d.mu.Unlock()
	return device.Await(ctx, fmt.Sprintf("open the device at %v", address))
}

// closePause is the time between two attempts to close a lost device.
const closePause = time.Second

// watch takes a device out of the set when it is lost, so that it is opened anew for whoever needs
// it next, and closes it when nobody uses it any more: the kernel may wait for that before it
// removes the device.
func (d *deviceSet[A, D]) watch(address A, device *devicecall.Open[D]) {
	select {
	case <-device.Ended():
	case <-d.closing:
		return
	}
	if device.HasFailed() {
		return
	}
	opened, _ := device.Await(context.Background(), "")
	lost := d.lost(opened)
	if lost == nil {
		return
	}
	select {
	case <-lost:
	case <-d.closing:
		return
	}
	d.mu.Lock()
	if d.devices[address] == device {
		delete(d.devices, address)
	}
	d.retired[device] = struct{}{}
	d.mu.Unlock()
	for device.Close() != nil {
		select {
		case <-time.After(closePause):
		case <-d.closing:
			return
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.retired, device)
}

// close closes all devices. They must not be in use.
func (d *deviceSet[A, D]) close() error {
	close(d.closing)
	d.watching.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for device := range d.retired {
		errs = append(errs, device.Close())
		delete(d.retired, device)
	}
	for address, device := range d.devices {
		errs = append(errs, device.Close())
		delete(d.devices, address)
	}
	return errors.Join(errs...)
}
