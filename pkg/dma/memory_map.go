package dma

import (
	"errors"
	"fmt"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// MemoryMap is a range of memory that devices can copy from and to
// (doca_mmap). It is configured, then started, and from then on buffers can be
// made of it. It may be used by any goroutine.
type MemoryMap struct {
	mu            sync.Mutex
	phase         phase
	imported      bool
	region        *memory.Region
	access        memory.Access
	devices       []Device
	registrations []Registration // of devices, in their order, while started
	buffers       int
}

// phase is where an object without peers is in its life.
type phase uint8

const (
	configuring phase = iota
	started
	closed
)

func (p phase) String() string { return [...]string{"not started", "started", "closed"}[p] }

// NewMemoryMap makes a memory map without memory, devices or rights.
func NewMemoryMap() *MemoryMap { return &MemoryMap{} }

// ImportMemoryMap makes a memory map of memory that a peer has exported, with
// the rights that it has granted, as Connection.ImportMemory of package comch
// returns them. It is started, cannot be configured, and leaves closing the
// region to the caller.
func ImportMemoryMap(device Device, region *memory.Region, access memory.Access) (*MemoryMap, error) {
	if device == nil || region == nil {
		return nil, status.Errorf(status.InvalidValue, "import memory map: there is no device, or no memory")
	}
	if !device.Capabilities().ImportedMemory {
		return nil, status.Errorf(status.NotSupported, "import memory map: device %s cannot reach memory across the PCIe bus", device.Name())
	}
	m := &MemoryMap{imported: true, region: region, access: access, devices: []Device{device}}
	if err := m.Start(); err != nil {
		return nil, err
	}
	return m, nil
}

// SetRegion sets the memory range, once. The region has to stay open until
// the map is stopped.
func (m *MemoryMap) SetRegion(region *memory.Region) error {
	return m.configure("set memory range", func() error {
		if m.region != nil {
			return status.Errorf(status.NotPermitted, "it has one already")
		}
		if region == nil || region.Len() == 0 {
			return status.Errorf(status.InvalidValue, "the region is empty")
		}
		m.region = region
		return nil
	})
}

// AddDevice lets a device reach the memory. status.AlreadyExist if it can.
func (m *MemoryMap) AddDevice(device Device) error {
	return m.configure("add device", func() error {
		if device == nil {
			return status.Errorf(status.InvalidValue, "there is no device")
		}
		if m.indexOf(device) >= 0 {
			return status.Errorf(status.AlreadyExist, "device %s was added before", device.Name())
		}
		m.devices = append(m.devices, device)
		return nil
	})
}

// RemoveDevice takes back AddDevice. status.NotFound if there is nothing to
// take back.
func (m *MemoryMap) RemoveDevice(device Device) error {
	return m.configure("remove device", func() error {
		i := m.indexOf(device)
		if i < 0 {
			return status.Errorf(status.NotFound, "it was not added")
		}
		m.devices = append(m.devices[:i], m.devices[i+1:]...)
		return nil
	})
}

// SetAccess sets what may be done to the memory. Reading it as a source of
// this process's jobs is always allowed; a destination needs
// memory.LocalWrite.
func (m *MemoryMap) SetAccess(access memory.Access) error {
	return m.configure("set access rights", func() error {
		if !access.Valid() {
			return status.Errorf(status.InvalidValue, "rights %#x are unknown", uint32(access))
		}
		m.access = access
		return nil
	})
}

func (m *MemoryMap) configure(what string, change func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.phase != configuring || m.imported {
		return status.Errorf(status.BadState, "%s of memory map: it is %s", what, m.describe())
	}
	if err := change(); err != nil {
		return fmt.Errorf("%s of memory map: %w", what, err)
	}
	return nil
}

func (m *MemoryMap) describe() string {
	if m.imported {
		return "imported and " + m.phase.String()
	}
	return m.phase.String()
}

func (m *MemoryMap) indexOf(device Device) int {
	for i, d := range m.devices {
		if d == device {
			return i
		}
	}
	return -1
}

// Start registers the memory with the devices. The map cannot be configured
// any further. status.BadState if it lacks memory or devices, or is started.
func (m *MemoryMap) Start() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.phase != configuring:
		return status.Errorf(status.BadState, "start memory map: it is %s", m.phase)
	case m.region == nil:
		return status.Errorf(status.BadState, "start memory map: it has no memory range")
	case len(m.devices) == 0:
		return status.Errorf(status.BadState, "start memory map: it has no device")
	}
	for _, device := range m.devices {
		r, err := device.Register(m.region, m.access)
		if err != nil {
			err = fmt.Errorf("start memory map of %d bytes: register with device %s: %w", m.region.Len(), device.Name(), err)
			return errors.Join(err, m.deregister())
		}
		m.registrations = append(m.registrations, r)
	}
	m.phase = started
	return nil
}

func (m *MemoryMap) deregister() error {
	var err error
	for _, r := range m.registrations {
		err = errors.Join(err, r.Deregister())
	}
	m.registrations = nil
	return err
}

// Stop takes the memory from the devices; the map can then be configured and
// started again, unless it is imported. status.InUse while there are buffers
// of it, status.BadState if it is not started.
func (m *MemoryMap) Stop() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.phase != started {
		return status.Errorf(status.BadState, "stop memory map: it is %s", m.phase)
	}
	return m.stop(configuring)
}

func (m *MemoryMap) stop(next phase) error {
	if m.buffers > 0 {
		return status.Errorf(status.InUse, "stop memory map: %d buffers of it are in use: drop their references first", m.buffers)
	}
	m.phase = next
	return m.deregister()
}

// Close stops the map if it is started, and gives it up. status.InUse while
// there are buffers of it. Closing it again does nothing.
func (m *MemoryMap) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stop(closed)
}

// Region is the memory, nil if none was set.
func (m *MemoryMap) Region() *memory.Region {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.region
}

// Access is what may be done to the memory.
func (m *MemoryMap) Access() memory.Access {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.access
}

// Imported reports whether the memory is that of a peer.
func (m *MemoryMap) Imported() bool { return m.imported }

// Buffers is how many buffers of the map are in use.
func (m *MemoryMap) Buffers() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.buffers
}

// take counts a buffer of the given range. Addresses begin at the region's
// Base.
func (m *MemoryMap) addBuffer(address, length uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.phase != started {
		return status.Errorf(status.BadState, "the memory map is %s", m.phase)
	}
	base := m.region.Base()
	if address < base {
		return status.Errorf(status.InvalidValue, "address %#x is below the memory map, which begins at %#x", address, base)
	}
	if err := m.region.CheckRange(address-base, length); err != nil {
		return err
	}
	m.buffers++
	return nil
}

func (m *MemoryMap) removeBuffer() {
	m.mu.Lock()
	m.buffers--
	m.mu.Unlock()
}

// While there is a buffer of the map nothing below changes, so whoever holds one
// needs no lock.

// registration is the memory as a device of the map knows it, nil if it does
// not.
func (m *MemoryMap) registration(device Device) Registration {
	if i := m.indexOf(device); i >= 0 {
		return m.registrations[i]
	}
	return nil
}

// canBeSource and canBeDestination tell what jobs may do to the memory.
func (m *MemoryMap) canBeSource() bool { return !m.imported || m.access.Has(memory.PCIRead) }

func (m *MemoryMap) canBeDestination() bool {
	if m.imported {
		return m.access.Has(memory.PCIWrite)
	}
	return m.access.Has(memory.LocalWrite)
}
