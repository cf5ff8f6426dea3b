// SPDX-License-Identifier: Apache-2.0

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
	devices map[A]*deviceEntry[D]
	// retired holds lost devices that are still in use.
	retired map[*deviceEntry[D]]struct{}
}

type deviceEntry[D io.Closer] struct {
	*devicecall.Open[D]
	since time.Time
	gone  chan struct{} // closed when the device is lost
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
		devices: make(map[A]*deviceEntry[D]),
		retired: make(map[*deviceEntry[D]]struct{}),
	}
}

// at returns the device at an address, and opens it if necessary. A device that does not answer
// delays only those who need it, until ctx ends.
func (d *deviceSet[A, D]) at(ctx context.Context, address A) (D, error) {
	d.mu.Lock()
	device := d.devices[address]
	if device == nil || device.HasFailed() {
		device = &deviceEntry[D]{since: time.Now(), gone: make(chan struct{}),
			Open: devicecall.NewOpen(func() (D, error) { return d.open(address) })}
		d.devices[address] = device
		d.watching.Go(func() { d.watch(address, device) })
	}
	d.mu.Unlock()
	return device.Await(ctx, fmt.Sprintf("open the device at %v", address))
}

// gone returns a channel that is closed when the device at an address is lost.
func (d *deviceSet[A, D]) gone(address A) <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if device := d.devices[address]; device != nil {
		return device.gone
	}
	gone := make(chan struct{}) // since the caller has got the device
	close(gone)
	return gone
}

// watch waits until a device tells that it is lost.
func (d *deviceSet[A, D]) watch(address A, device *deviceEntry[D]) {
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
		d.mu.Lock()
		defer d.mu.Unlock()
		d.retireLocked(address, device)
	case <-d.closing:
	}
}

// doubtAge is how long a device is in use at least before an error makes the relay doubt it, so
// that errors which a peer can cause do not make it open devices all the time.
var doubtAge = 10 * time.Second

// doubt treats the device at an address as lost if an error says that it has failed: not every kind
// of device tells when it is removed or reset.
func (d *deviceSet[A, D]) doubt(address A, err error) {
	if status.CodeOf(err) != status.Driver {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if device := d.devices[address]; device != nil && time.Since(device.since) > doubtAge {
		d.retireLocked(address, device)
	}
}

// closePause is the time between two attempts to close a lost device.
const closePause = time.Second

// retireLocked takes a device out of the set, so that it is opened anew for whoever needs it next,
// and closes it when nobody uses it any more: the kernel may wait for that before it removes the
// device.
func (d *deviceSet[A, D]) retireLocked(address A, device *deviceEntry[D]) {
	if d.devices[address] != device {
		return
	}
	delete(d.devices, address)
	close(device.gone)
	d.retired[device] = struct{}{}
	d.watching.Go(func() { d.closeRetired(device) })
}

// closeRetired closes a lost device as soon as nobody uses it any more.
func (d *deviceSet[A, D]) closeRetired(device *deviceEntry[D]) {
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
