// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package doca

import (
	"github.com/zc-relay/zc-relay/internal/pci"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Mapped is the memory.Handle of memory that was imported through libdoca.
type Mapped interface {
	memory.Handle
	// MemoryMap returns the map. It lives as long as the region.
	MemoryMap() *MemoryMap
}

// Region returns an opaque region of imported memory. Its Handle implements Mapped and, if libdoca
// gives out a protection domain and a key, rdma.ForeignMemory. If it does not, Region returns the
// reason beside the region. release is called when the region is closed; it closes the map.
func (m *MemoryMap) Region(release func() error) (*memory.Region, error) {
	var h memory.Handle = &handle{m}
	domain, err := m.device.ProtectionDomain()
	if err == nil && domain == 0 {
		err = status.Errorf(status.NotSupported, "the device has no protection domain")
	}
	var key uint32
	if err == nil {
		key, err = m.Key()
	}
	if err == nil {
		h = &keyedHandle{handle{m}, domain, key}
	}
	return memory.NewOpaque(h, m.base, m.length, release), err
}

// handle implements Mapped.
type handle struct{ memory *MemoryMap }

func (h *handle) Device() memory.Device {
	return memory.Device{PCI: pci.Normalize(h.memory.device.PCIAddress),
		RDMA: h.memory.device.IBName}
}

func (h *handle) MemoryMap() *MemoryMap { return h.memory }

// keyedHandle implements Mapped and rdma.ForeignMemory.
type keyedHandle struct {
	handle
	domain uintptr
	key    uint32
}

func (h *keyedHandle) ProtectionDomain() uintptr { return h.domain }
func (h *keyedHandle) Key() uint32               { return h.key }
