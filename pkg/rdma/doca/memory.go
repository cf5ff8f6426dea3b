// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package doca

import (
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/registration"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// domain is a protection domain: the regions that its connections can use, and that their peers can
// ask for.
type domain struct {
	device *device
	// regions is replaced as a whole, so that the data path reads it without a lock.
	regions atomic.Pointer[map[uint32]*region]
	// imports is the memory of peers that are programs written for DOCA, likewise.
	imports atomic.Pointer[map[uint32]*imported]

	mu          sync.Mutex // guards the rest, and changes of regions
	connections map[*connection]struct{}
	closed      bool
}

// NewProtectionDomain makes a protection domain.
func (d *device) NewProtectionDomain() (rdma.ProtectionDomain, error) {
	if err := d.Acquire("make protection domain"); err != nil {
		return nil, err
	}
	p := &domain{device: d, connections: make(map[*connection]struct{})}
	p.regions.Store(&map[uint32]*region{})
	p.imports.Store(&map[uint32]*imported{})
	return p, nil
}

// NewForeignDomain returns a domain for memory that DOCA has imported. All domains of a device can
// use it.
func (d *device) NewForeignDomain(foreign memory.Handle) (rdma.ProtectionDomain, error) {
	if _, err := d.mapOf(foreign); err != nil {
		return nil, err
	}
	return d.NewProtectionDomain()
}

// mapOf returns the map of memory that DOCA has imported on this device.
func (d *device) mapOf(handle memory.Handle) (*doca.MemoryMap, error) {
	mapped, ok := handle.(doca.Mapped)
	if !ok || mapped.MemoryMap().Device() != d.doca {
		return nil, status.Errorf(status.NotSupported,
			"the memory was not imported with DOCA device %v", d.doca)
	}
	return mapped.MemoryMap(), nil
}

// Register makes a region usable by the domain's connections.
func (p *domain) Register(
	memoryRegion *memory.Region, access memory.Access,
) (rdma.MemoryRegion, error) {
	if !access.Valid() {
		return nil, status.Errorf(status.InvalidValue,
			"register memory: invalid access rights %#x", uint32(access))
	}
	r := &region{domain: p, access: access}
	var err error
	if memoryRegion.Mapped() {
		r.memory, err = p.device.doca.MapMemory(memoryRegion.Bytes(), access)
		r.owned = r.memory
	} else {
		r.memory, err = p.device.mapOf(memoryRegion.Handle())
	}
	if err == nil && access&(memory.RemoteRead|memory.RemoteWrite) != 0 {
		r.export, err = r.memory.ExportRDMA()
	}
	if err == nil {
		err = p.add(r)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("register memory: %w", err), r.closeMap())
	}
	return r, nil
}

// add gives a region a key that no other has.
func (p *domain) add(r *region) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return status.Errorf(status.BadState, "protection domain is closed")
	}
	regions := maps.Clone(*p.regions.Load())
	for r.key == 0 || regions[r.key] != nil {
		r.key = registration.RandomKey()
	}
	regions[r.key] = r
	p.regions.Store(&regions)
	return nil
}

// find returns the region with a key, or nil.
func (p *domain) find(key uint32) *region { return (*p.regions.Load())[key] }

// resolve returns the region of a local segment and the segment's offset in it.
func (p *domain) resolve(local *rdma.Segment, writes bool) (*region, uint64, error) {
	r := p.find(local.Key)
	if r == nil {
		return nil, 0, errUnknownKey
	}
	offset := local.Address - r.memory.Base()
	length := uint64(local.Length)
	if local.Address < r.memory.Base() || offset > r.memory.Len() ||
		length > r.memory.Len()-offset {
		return nil, 0, errOutsideRegion
	}
	if writes && !r.access.Has(memory.LocalWrite) {
		return nil, 0, errReadOnly
	}
	return r, offset, nil
}

// Errors of the data path are allocated once, because callers may see them often.
var (
	errUnknownKey = status.Errorf(status.InvalidValue,
		"local segment: no memory of the connection's domain has the key")
	errOutsideRegion = status.Errorf(status.InvalidValue,
		"local segment: it is not within its memory region")
	errReadOnly = status.Errorf(status.InvalidValue,
		"local segment: its memory must not be written to")
)

// attach adds a connection to the domain.
func (p *domain) attach(c *connection) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return status.Errorf(status.BadState, "protection domain is closed")
	}
	p.connections[c] = struct{}{}
	return nil
}

func (p *domain) detach(c *connection) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.connections, c)
}

// users returns the connections that have a region in a posted request.
func (p *domain) users(r *region) []*connection {
	p.mu.Lock()
	defer p.mu.Unlock()
	var users []*connection
	for c := range p.connections {
		if c.uses(r) {
			users = append(users, c)
		}
	}
	return users
}

// Close fails with status.InUse while the domain has memory regions or connections.
func (p *domain) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	regions := len(*p.regions.Load()) + len(*p.imports.Load())
	if regions > 0 || len(p.connections) > 0 {
		return status.Errorf(status.InUse,
			"close protection domain: it has %d memory regions and %d connections", regions,
			len(p.connections))
	}
	if !p.closed {
		p.closed = true
		p.device.Uses.Release()
	}
	return nil
}

// imported implements rdma.ImportedRegion.
type imported struct {
	domain *domain
	memory *doca.MemoryMap
	key    uint32
}

// Import makes memory that a program written for DOCA has exported usable by prepared connections.
func (p *domain) Import(export []byte) (rdma.ImportedRegion, error) {
	m, err := p.device.doca.ImportMemory(export)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errors.Join(status.Errorf(status.BadState, "protection domain is closed"),
			m.Close())
	}
	imports := maps.Clone(*p.imports.Load())
	i := &imported{domain: p, memory: m}
	for i.key == 0 || imports[i.key] != nil {
		i.key = registration.RandomKey()
	}
	imports[i.key] = i
	p.imports.Store(&imports)
	return i, nil
}

func (i *imported) RemoteMemory() rdma.RemoteMemory {
	return rdma.RemoteMemory{Key: i.key, Base: i.memory.Base(), Length: i.memory.Len(),
		Access: memory.RemoteRead | memory.RemoteWrite}
}

func (i *imported) Close() error {
	p := i.domain
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.connections) > 0 {
		return status.Errorf(status.InUse, "close imported memory: %d connections may use it",
			len(p.connections))
	}
	imports := maps.Clone(*p.imports.Load())
	delete(imports, i.key)
	p.imports.Store(&imports)
	return i.memory.Close()
}

// region implements rdma.ExportedRegion.
type region struct {
	domain *domain
	memory *doca.MemoryMap
	owned  *doca.MemoryMap // nil if the map belongs to whoever imported the memory
	access memory.Access
	key    uint32
	export []byte // nil if peers have no rights

	revoked atomic.Bool
	mu      sync.Mutex // serializes Deregister
	done    bool
}

func (r *region) LocalKey() uint32  { return r.key }
func (r *region) RemoteKey() uint32 { return r.key }
func (r *region) Base() uint64      { return r.memory.Base() }
func (r *region) Len() uint64       { return r.memory.Len() }

// Export returns what a program written for DOCA needs to reach the memory
// (doca_mmap_create_from_export).
func (r *region) Export() []byte { return r.export }

// Deregister revokes the keys. libdoca cannot take memory away from a request, so connections with
// requests that use it end.
func (r *region) Deregister() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done {
		return nil
	}
	p := r.domain
	r.revoked.Store(true)
	p.mu.Lock()
	regions := maps.Clone(*p.regions.Load())
	delete(regions, r.key)
	p.regions.Store(&regions)
	p.mu.Unlock()
	for _, c := range p.users(r) {
		c.fail(status.Errorf(status.ConnectionAborted,
			"memory in use by the connection was deregistered"))
		if err := c.halt(); err != nil {
			return fmt.Errorf("deregister memory: %w", err)
		}
	}
	if err := r.closeMap(); err != nil {
		return fmt.Errorf("deregister memory: %w", err)
	}
	r.done = true
	return nil
}

func (r *region) closeMap() error {
	if r.owned == nil {
		return nil
	}
	return r.owned.Close()
}
