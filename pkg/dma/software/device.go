package software

import (
	"sync"

	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// device implements dma.Device.
type device struct {
	name         string
	capabilities dma.Capabilities
	policy       progress.Policy

	mu            sync.Mutex
	closed        bool
	engines       int
	registrations int
}

func (d *device) Name() string                   { return d.name }
func (d *device) Capabilities() dma.Capabilities { return d.capabilities }

func (d *device) Register(region *memory.Region, access memory.Access) (dma.Registration, error) {
	if !region.Mapped() {
		return nil, status.Errorf(status.NotSupported, "a region of %d bytes is opaque: the CPU cannot copy it", region.Len())
	}
	if !access.Valid() {
		return nil, status.Errorf(status.InvalidValue, "access rights %#x are unknown", uint32(access))
	}
	if err := d.count(&d.registrations); err != nil {
		return nil, err
	}
	return &registration{device: d, region: region}, nil
}

// registration implements dma.Registration.
type registration struct {
	device *device
	region *memory.Region
	once   sync.Once
}

func (r *registration) Deregister() error {
	r.once.Do(func() { r.device.discount(&r.device.registrations) })
	return nil
}

func (d *device) NewEngine(capacity int) (dma.Engine, error) {
	if capacity < 1 || capacity > d.capabilities.MaxJobs {
		return nil, status.Errorf(status.InvalidValue, "%d copies at a time are not within 1 and %d", capacity, d.capabilities.MaxJobs)
	}
	if err := d.count(&d.engines); err != nil {
		return nil, err
	}
	e, err := newEngine(d, capacity)
	if err != nil {
		d.discount(&d.engines)
		return nil, err
	}
	return e, nil
}

func (d *device) count(what *int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return status.Errorf(status.BadState, "device %s is closed", d.name)
	}
	*what++
	return nil
}

func (d *device) discount(what *int) {
	d.mu.Lock()
	*what--
	d.mu.Unlock()
}

func (d *device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.engines > 0 || d.registrations > 0 {
		return status.Errorf(status.InUse, "close device %s: %d contexts and %d memory maps use it", d.name, d.engines, d.registrations)
	}
	d.closed = true
	return nil
}
