// SPDX-License-Identifier: Apache-2.0

// Package software is a DMA provider for any Linux machine: each engine is a thread that copies, or
// copies on the thread that polls it (Options.Inline).
//
// Copies go to the thread and back through two rings with atomic indices. A side that has nothing
// to do polls for a while and then sleeps on an eventfd, to which the other side writes only during
// that sleep. The thread copies in pieces, so that the garbage collector never waits for a large
// copy. It uses memory.Copy, so that a page that its owner has made inaccessible fails the copy
// instead of the process.
package software

import (
	"slices"
	"sync"

	"github.com/zc-relay/zc-relay/internal/pci"
	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/dma/internal/users"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// The PCI addresses of the devices that exist by default.
const (
	// DefaultDevice is the address of the device on the DPU.
	DefaultDevice = "03:00.0"
	// DefaultHostDevice is the address of the device on the host.
	DefaultHostDevice = "b1:00.0"
)

// Options configures a provider. The zero value is ready for use.
type Options struct {
	// Devices are the PCI addresses of the emulated devices; nil means DefaultDevice and
	// DefaultHostDevice.
	Devices []string
	// MaxBufferSize is the number of bytes that one job can copy; 0 means DefaultMaxBufferSize.
	MaxBufferSize uint64
	// AnyDevice makes a device exist at every address, in addition to Devices.
	AnyDevice bool
	// Inline makes engines copy on the thread that polls them. It suits a thread that serves many
	// engines and has nothing better to do while the data is copied.
	Inline bool
	// Policy is how a copy thread waits for work. The zero value suits shared cores.
	Policy progress.Policy
}

// DefaultMaxBufferSize is the default of Options.MaxBufferSize, in bytes. It is the same as on
// hardware, so that programs do not come to depend on more.
const DefaultMaxBufferSize = 2 << 20

// The other limits.
const (
	maxBufferListLength = 64
	maxJobs             = 4096
)

type provider struct {
	devices      []string
	anyDevice    bool
	capabilities dma.Capabilities
	inline       bool
	policy       progress.Policy
}

// New returns a provider.
func New(options Options) dma.Provider {
	p := &provider{devices: slices.Clone(options.Devices), anyDevice: options.AnyDevice,
		inline: options.Inline, policy: options.Policy}
	if len(p.devices) == 0 {
		p.devices = []string{DefaultDevice, DefaultHostDevice}
	}
	if options.MaxBufferSize == 0 {
		options.MaxBufferSize = DefaultMaxBufferSize
	}
	p.capabilities = dma.Capabilities{
		Memcpy: true, MaxBufferSize: options.MaxBufferSize,
		MaxBufferListLength: maxBufferListLength, MaxJobs: maxJobs,
		ImportedMemory: true, CanWait: !options.Inline,
	}
	return p
}

func (p *provider) Name() string { return "software" }

func (p *provider) Devices() ([]string, error) { return slices.Clone(p.devices), nil }

func (p *provider) Capabilities(device string) (dma.Capabilities, error) {
	isDevice := func(name string) bool { return pci.Normalize(name) == pci.Normalize(device) }
	if !p.anyDevice && !slices.ContainsFunc(p.devices, isDevice) {
		return dma.Capabilities{}, status.Errorf(status.NotFound,
			"no DMA device %q: the devices are %q", device, p.devices)
	}
	return p.capabilities, nil
}

func (p *provider) Open(name string) (dma.Device, error) {
	capabilities, err := p.Capabilities(name)
	if err != nil {
		return nil, err
	}
	return &device{
		name: name, users: users.Users{Name: name}, capabilities: capabilities, inline: p.inline,
		policy: p.policy,
	}, nil
}

// device implements dma.Device.
type device struct {
	name         string
	capabilities dma.Capabilities
	inline       bool
	policy       progress.Policy

	users users.Users
}

func (d *device) Name() string { return d.name }

func (d *device) Capabilities() dma.Capabilities { return d.capabilities }

func (d *device) Register(region *memory.Region, access memory.Access) (dma.Registration, error) {
	if !region.Copyable() {
		return nil, status.Errorf(status.NotSupported,
			"opaque region of %d bytes: the CPU cannot access it", region.Len())
	}
	if !access.Valid() {
		return nil, status.Errorf(status.InvalidValue, "unknown access rights %#x", uint32(access))
	}
	if err := d.users.Add(users.Registration); err != nil {
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
	r.once.Do(func() { r.device.users.Remove(users.Registration) })
	return nil
}

func (d *device) NewEngine(capacity int) (dma.Engine, error) {
	if capacity < 1 || capacity > d.capabilities.MaxJobs {
		return nil, status.Errorf(status.InvalidValue,
			"create DMA engine: %d copies at a time is not between 1 and %d",
			capacity, d.capabilities.MaxJobs)
	}
	if err := d.users.Add(users.Engine); err != nil {
		return nil, err
	}
	var e dma.Engine
	var err error
	if d.inline {
		e, err = newInlineEngine(d, capacity)
	} else {
		e, err = newEngine(d, capacity)
	}
	if err != nil {
		d.users.Remove(users.Engine)
		return nil, err
	}
	return e, nil
}

func (d *device) Close() error { return d.users.Close(nil) }
