// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package doca

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/zc-relay/zc-relay/internal/pci"
	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/dma/internal/users"
	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// maxBufferListLength bounds the list that a job copies from: an engine keeps that many doca_bufs
// for each job.
const maxBufferListLength = 16

// maxJobs bounds the jobs in flight of a context.
const maxJobs = 4096

type provider struct {
	loader *doca.Loader
	wait   bool
}

// New returns a provider. It opens no library until one of its methods is called.
func New(options Options) dma.Provider {
	p := &provider{loader: options.Loader, wait: !options.NeverWait}
	if p.loader == nil {
		p.loader = doca.System()
	}
	return p
}

func (p *provider) Name() string { return providerName }

// wrap says which provider has failed.
func wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("DMA provider %s: %w", providerName, err)
}

// library returns libdoca with DMA.
func (p *provider) library() (*doca.Library, error) {
	library, err := p.loader.Library()
	if err == nil {
		err = library.NeedDMA()
	}
	return library, wrap(err)
}

func (p *provider) Devices() ([]string, error) {
	library, err := p.library()
	if err != nil {
		return nil, err
	}
	devices, err := library.Devices()
	var addresses []string
	for _, d := range devices {
		// Sub-functions have the address of their function.
		if address := pci.Normalize(d.PCIAddress); !slices.Contains(addresses, address) {
			addresses = append(addresses, address)
		}
	}
	return addresses, wrap(err)
}

func (p *provider) Capabilities(device string) (dma.Capabilities, error) {
	library, err := p.library()
	if err != nil {
		return dma.Capabilities{}, err
	}
	c, err := library.DMACapabilities(device)
	return p.capabilities(library, c), wrap(err)
}

func (p *provider) capabilities(library *doca.Library, c doca.DMACapabilities) dma.Capabilities {
	return dma.Capabilities{
		Memcpy: c.Memcpy, MaxBufferSize: c.MaxLength,
		MaxBufferListLength: min(c.MaxListLength, maxBufferListLength),
		MaxJobs:             min(c.MaxCopies, maxJobs),
		ImportedMemory:      c.Import, OpaqueMemory: c.Import,
		CanWait: p.wait && library.CanWait(),
	}
}

func (p *provider) Open(name string) (dma.Device, error) {
	library, err := p.library()
	if err != nil {
		return nil, err
	}
	opened, err := library.OpenDevice(name)
	if err != nil {
		return nil, wrap(err)
	}
	c, err := opened.DMACapabilities()
	if err != nil {
		return nil, wrap(errors.Join(err, opened.Close()))
	}
	return &device{
		name: name, users: users.Users{Name: name}, doca: opened,
		capabilities: p.capabilities(library, c),
	}, nil
}

// device implements dma.Device.
type device struct {
	name         string
	doca         *doca.Device
	capabilities dma.Capabilities

	users users.Users
}

func (d *device) Name() string { return d.name }

func (d *device) Capabilities() dma.Capabilities { return d.capabilities }

func (d *device) Register(region *memory.Region, access memory.Access) (dma.Registration, error) {
	if !access.Valid() {
		return nil, status.Errorf(status.InvalidValue, "unknown access rights %#x", uint32(access))
	}
	if err := d.users.Add(users.Registration); err != nil {
		return nil, err
	}
	r, err := d.register(region, access)
	if err != nil {
		d.users.Remove(users.Registration)
		return nil, err
	}
	return r, nil
}

func (d *device) register(region *memory.Region, access memory.Access) (*registration, error) {
	if region.Mapped() {
		m, err := d.doca.MapMemory(region.Bytes(), access)
		return &registration{device: d, memory: m, own: true}, err
	}
	imported, ok := region.Handle().(doca.Mapped)
	if !ok {
		return nil, status.Errorf(status.NotSupported,
			"opaque region of %d bytes: it was not imported through DOCA", region.Len())
	}
	if m := imported.MemoryMap(); m.Device() == d.doca {
		return &registration{device: d, memory: m}, nil
	}
	return nil, status.Errorf(status.NotSupported,
		"opaque region of %d bytes: it belongs to device %v, not %s", region.Len(),
		region.Device(), d.name)
}

// registration implements dma.Registration.
type registration struct {
	device *device
	memory *doca.MemoryMap
	own    bool // memory was made for the registration
	once   sync.Once
	err    error
}

func (r *registration) Deregister() error {
	r.once.Do(func() {
		if r.own {
			r.err = r.memory.Close()
		}
		r.device.users.Remove(users.Registration)
	})
	return r.err
}

func (d *device) NewEngine(capacity int) (dma.Engine, error) {
	if capacity < 1 || capacity > d.capabilities.MaxJobs {
		return nil, status.Errorf(status.InvalidValue,
			"create DMA engine: %d copies at a time is not between 1 and %d", capacity,
			d.capabilities.MaxJobs)
	}
	if err := d.users.Add(users.Engine); err != nil {
		return nil, err
	}
	e, err := d.newEngine(capacity)
	if err != nil {
		d.users.Remove(users.Engine)
		return nil, err
	}
	return e, nil
}

func (d *device) Close() error { return d.users.Close(d.doca.Close) }
