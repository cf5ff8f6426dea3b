// SPDX-License-Identifier: Apache-2.0

package dma

import (
	"errors"
	"fmt"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// MemoryMap is a range of memory that devices can copy from and to (doca_mmap). Configure it, start
// it, and then claim buffers in it. Any goroutine may use it.
type MemoryMap struct {
	mu            sync.Mutex
	phase         phase
	imported      bool
	region        *memory.Region
	access        memory.Access
	devices       []Device
	registrations []Registration // one for each device, in order, while started
	buffers       int            // claimed buffers
}

// phase is the state of a memory map or an inventory.
type phase uint8

const (
	configuring phase = iota
	started
	closed
)

func (p phase) String() string { return [...]string{"not started", "started", "closed"}[p] }

// NewMemoryMap returns a memory map without memory, devices, and access rights.
func NewMemoryMap() *MemoryMap { return &MemoryMap{} }

// ImportMemoryMap returns a memory map of a region that a peer has exported. region and access are
// the results of Connection.ImportMemory of package comch. The map is started and cannot be
// configured. The caller closes the region after the map.
func ImportMemoryMap(
	device Device, region *memory.Region, access memory.Access,
) (*MemoryMap, error) {
	if device == nil || region == nil {
		return nil, status.Errorf(status.InvalidValue, "import memory map: no device, or no memory")
	}
	if !device.Capabilities().ImportedMemory {
		return nil, status.Errorf(status.NotSupported,
			"import memory map: device %s cannot reach memory across the PCIe bus", device.Name())
	}
	m := &MemoryMap{imported: true, region: region, access: access, devices: []Device{device}}
	if err := m.Start(); err != nil {
		return nil, err
	}
	return m, nil
}

// SetRegion sets the memory of the map. It can be set only once. The region must stay open until
// the map is stopped.
func (m *MemoryMap) SetRegion(region *memory.Region) error {
	return m.configure("set memory", func() error {
		if m.region != nil {
			return status.Errorf(status.NotPermitted, "it is already set")
		}
		if region == nil || region.Len() == 0 {
			return status.Errorf(status.InvalidValue, "the region is empty")
		}
		m.region = region
		return nil
	})
}

// AddDevice lets a device reach the memory. It fails with status.AlreadyExist if the device has
// been added already.
func (m *MemoryMap) AddDevice(device Device) error {
	return m.configure("add device", func() error {
		if device == nil {
			return status.Errorf(status.InvalidValue, "the device is nil")
		}
		if m.indexOf(device) >= 0 {
			return status.Errorf(status.AlreadyExist, "device %s has been added already",
				device.Name())
		}
		m.devices = append(m.devices, device)
		return nil
	})
}

// RemoveDevice undoes AddDevice. It fails with status.NotFound if the device was not added.
func (m *MemoryMap) RemoveDevice(device Device) error {
	return m.configure("remove device", func() error {
		i := m.indexOf(device)
		if i < 0 {
			return status.Errorf(status.NotFound, "the device was not added")
		}
		m.devices = append(m.devices[:i], m.devices[i+1:]...)
		return nil
	})
}

// SetAccess sets the access rights to the memory. Jobs of this process can always read it as a
// source; memory.LocalWrite lets them write it as a destination.
func (m *MemoryMap) SetAccess(access memory.Access) error {
	return m.configure("set access rights", func() error {
		if !access.Valid() {
			return status.Errorf(status.InvalidValue, "unknown access rights %#x", uint32(access))
		}
		m.access = access
		return nil
	})
}

// configure applies a change to a map that is not started.
func (m *MemoryMap) configure(what string, change func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.phase != configuring || m.imported {
		return status.Errorf(status.BadState, "configure memory map: %s: it is %s", what,
			m.describe())
	}
	if err := change(); err != nil {
		return fmt.Errorf("configure memory map: %s: %w", what, err)
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

// Start registers the memory with the devices. A started map cannot be configured. Start fails with
// status.BadState if the map has no memory or no device, or is started.
func (m *MemoryMap) Start() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.phase != configuring:
		return status.Errorf(status.BadState, "start memory map: it is %s", m.phase)
	case m.region == nil:
		return status.Errorf(status.BadState, "start memory map: it has no memory")
	case len(m.devices) == 0:
		return status.Errorf(status.BadState, "start memory map: it has no device")
	}
	for _, device := range m.devices {
		r, err := device.Register(m.region, m.access)
		if err != nil {
			err = fmt.Errorf("start memory map of %d bytes: register with device %s: %w",
				m.region.Len(), device.Name(), err)
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

// Stop deregisters the memory. The map can then be configured and started again, unless it is
// imported. Stop fails with status.InUse while buffers of the map are claimed, and with
// status.BadState if the map is not started.
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
		return status.Errorf(status.InUse,
			"stop memory map: %d of its buffers are claimed: drop their references first",
			m.buffers)
	}
	m.phase = next
	return m.deregister()
}

// Close stops the map if it is started, and releases it. It fails with status.InUse while buffers
// of the map are claimed. Closing a closed map does nothing.
func (m *MemoryMap) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stop(closed)
}

// Region returns the memory, or nil if none is set.
func (m *MemoryMap) Region() *memory.Region {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.region
}

// Access returns the access rights to the memory.
func (m *MemoryMap) Access() memory.Access {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.access
}

// Imported reports whether the memory belongs to a peer.
func (m *MemoryMap) Imported() bool { return m.imported }

// Buffers returns the number of claimed buffers.
func (m *MemoryMap) Buffers() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.buffers
}

// addBuffer checks the range of a buffer that is being claimed, and counts the buffer. Addresses
// start at the Base of the region.
func (m *MemoryMap) addBuffer(address, length uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.phase != started {
		return status.Errorf(status.BadState, "the memory map is %s", m.phase)
	}
	base := m.region.Base()
	if address < base {
		return status.Errorf(status.InvalidValue,
			"address %#x is below the start of the memory map, %#x", address, base)
	}
	if err := m.region.CheckRange(address-base, length); err != nil {
		return err
	}
	m.buffers++
	return nil
}

// removeBuffer undoes addBuffer.
func (m *MemoryMap) removeBuffer() {
	m.mu.Lock()
	m.buffers--
	m.mu.Unlock()
}

// The methods below take no lock: the caller holds a buffer of the map, so nothing that they read
// can change.

// registration returns the registration with a device, or nil if the device was not added to the
// map.
func (m *MemoryMap) registration(device Device) Registration {
	if i := m.indexOf(device); i >= 0 {
		return m.registrations[i]
	}
	return nil
}

// canBeSource reports whether jobs may read the memory.
func (m *MemoryMap) canBeSource() bool { return !m.imported || m.access.Has(memory.PCIRead) }

// canBeDestination reports whether jobs may write the memory.
func (m *MemoryMap) canBeDestination() bool {
	if m.imported {
		return m.access.Has(memory.PCIWrite)
	}
	return m.access.Has(memory.LocalWrite)
}
