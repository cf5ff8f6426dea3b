// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package verbs

import (
	"fmt"
	"math"
	"math/bits"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs/internal/ibv"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// protectionDomain implements rdma.ProtectionDomain. Any goroutine may use it.
type protectionDomain struct {
	device   *device
	pd       *ibv.ProtectionDomain
	context  *ibv.Context // the device's own, or that of a foreign domain
	regions  memoryTable
	uses     atomic.Int64   // memory regions and connections; negative once closed
	discards sync.WaitGroup // connections being discarded
}

// Register implements rdma.ProtectionDomain. Of opaque memory, it supports what belongs to the
// domain already (rdma.ForeignMemory).
func (d *protectionDomain) Register(
	region *memory.Region, access memory.Access,
) (rdma.MemoryRegion, error) {
	if !access.Valid() {
		return nil, status.Errorf(status.InvalidValue,
			"register memory: undefined access rights %#x", uint32(access))
	}
	if !d.acquire() {
		return nil, status.Errorf(status.BadState, "register memory: protection domain is closed")
	}
	r := &memoryRegion{domain: d, length: region.Len(), access: access}
	var err error
	if region.Mapped() {
		err = r.register(region)
	} else {
		err = r.adopt(region)
	}
	if err != nil {
		d.release()
		return nil, fmt.Errorf("register memory of %d bytes on %s: %w",
			region.Len(), d.device.location.device, err)
	}
	return r, nil
}

// register registers mapped memory with the device.
func (r *memoryRegion) register(region *memory.Region) error {
	if limit := r.domain.device.limits.RegionBytes; region.Len() > limit {
		return status.Errorf(status.TooBig, "the device registers at most %d bytes at once", limit)
	}
	mr, err := r.domain.pd.Register(region.Bytes(), deviceAccess(r.access))
	if err != nil {
		return err
	}
	r.mr, r.base, r.untrusted = mr, mr.Address(), region.Untrusted()
	r.localKey, r.remoteKey = mr.LocalKey(), mr.RemoteKey()
	r.domain.regions.insert(r)
	return nil
}

// adopt makes opaque memory usable that another library has registered in the domain. The CPU must
// not touch it.
func (r *memoryRegion) adopt(region *memory.Region) error {
	foreign, ok := region.Handle().(rdma.ForeignMemory)
	if !ok {
		return status.Errorf(status.NotSupported,
			"it is opaque, and its provider has not registered it for RDMA")
	}
	if foreign.ProtectionDomain() != r.domain.pd.Address() {
		return status.Errorf(status.NotSupported,
			"it belongs to a protection domain of device %v", region.Device())
	}
	r.base, r.untrusted = region.Base(), true
	r.localKey, r.remoteKey = foreign.Key(), foreign.Key()
	if !r.domain.regions.insert(r) {
		return status.Errorf(status.InUse, "key %#x is registered already", r.localKey)
	}
	return nil
}

// deviceAccess converts access rights to verbs. Remote writes also need the right to write locally
// (IBTA volume 1, 10.6.3.1).
func deviceAccess(access memory.Access) (rights ibv.Access) {
	if access&(memory.LocalWrite|memory.RemoteWrite) != 0 {
		rights |= ibv.LocalWrite
	}
	if access.Has(memory.RemoteRead) {
		rights |= ibv.RemoteRead
	}
	if access.Has(memory.RemoteWrite) {
		rights |= ibv.RemoteWrite
	}
	return rights
}

// Close implements rdma.ProtectionDomain. It first waits for connections that are being discarded.
func (d *protectionDomain) Close() error {
	d.discards.Wait()
	if !d.uses.CompareAndSwap(0, math.MinInt64/2) {
		return status.Errorf(status.InUse,
			"close protection domain: it has memory regions or connections, or is closed already")
	}
	err := d.pd.Close()
	d.device.release()
	return err
}

// acquire takes a reference that keeps the domain open, until release. It returns false once the
// domain is closed.
func (d *protectionDomain) acquire() bool {
	if d.uses.Add(1) > 0 {
		return true
	}
	d.release()
	return false
}

func (d *protectionDomain) release() { d.uses.Add(-1) }

// memoryRegion implements rdma.MemoryRegion. Work requests use this process's virtual addresses,
// because not every driver can register memory under other addresses.
type memoryRegion struct {
	domain    *protectionDomain
	mr        interface{ Deregister() error } // nil for memory that another library has registered
	localKey  uint32
	remoteKey uint32
	base      uint64
	length    uint64
	access    memory.Access
	untrusted bool // another process can make pages inaccessible: the CPU must not touch them

	mu           sync.Mutex // held by Deregister
	deregistered bool
}

func (r *memoryRegion) LocalKey() uint32  { return r.localKey }
func (r *memoryRegion) RemoteKey() uint32 { return r.remoteKey }
func (r *memoryRegion) Base() uint64      { return r.base }
func (r *memoryRegion) Len() uint64       { return r.length }

// Deregister implements rdma.MemoryRegion. The device waits for accesses in progress and fails
// later ones, without help from any thread of this process. siw does not wait, so Deregister waits
// in its place. The key of memory that another library has registered stays valid until that
// library revokes it.
func (r *memoryRegion) Deregister() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.deregistered {
		return nil
	}
	r.domain.regions.remove(r)
	if r.mr != nil {
		if err := r.mr.Deregister(); err != nil {
			return err // peers may still reach the memory: the caller can try again
		}
		if r.domain.device.limits.SoftIWARP {
			awaitKernelCopies()
		}
	}
	r.deregistered = true
	r.domain.release()
	return nil
}

// awaitKernelCopies waits until the kernel has finished the copies into user memory that are in
// progress. siw places data with preemption disabled. The global membarrier command returns when
// every core has passed through a state with preemption enabled (synchronize_rcu). It takes about
// 10 ms, and fails at once on kernels with isolated cores (nohz_full).
func awaitKernelCopies() {
	const membarrierGlobal = 1 // MEMBARRIER_CMD_GLOBAL
	_, _, _ = unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0)
}

// resolve returns the memory region of a local segment, which must have the given rights. For a
// segment of length 0 it returns nil.
func (d *protectionDomain) resolve(
	segment *rdma.Segment, rights memory.Access,
) (*memoryRegion, error) {
	if segment.Length == 0 {
		return nil, nil
	}
	r := d.regions.lookup(segment.Key)
	if r == nil {
		return nil, status.Errorf(status.InvalidValue,
			"local key %#x is not registered in the connection's protection domain", segment.Key)
	}
	if !r.hasRange(segment.Address, uint64(segment.Length)) {
		return nil, status.Errorf(status.InvalidValue,
			"segment of %d bytes at %#x is outside the memory region of %d bytes at %#x",
			segment.Length, segment.Address, r.length, r.base)
	}
	if !r.access.Has(rights) {
		return nil, status.Errorf(status.NotPermitted,
			"memory region with local key %#x was registered without LocalWrite", segment.Key)
	}
	return r, nil
}

// hasRange reports whether the range is within the memory. The computation cannot wrap around.
func (r *memoryRegion) hasRange(address, length uint64) bool {
	offset := address - r.base
	return address >= r.base && offset <= r.length && length <= r.length-offset
}

// memoryTable finds the memory regions of a protection domain by local key. Lookups take no lock;
// changes, which are rare, replace the table.
type memoryTable struct {
	current atomic.Pointer[memorySlots]

	mu      sync.Mutex // serializes changes
	regions map[uint32]*memoryRegion
}

// memorySlots is a hash table with open addressing, at most half full. The device chooses the keys,
// which may differ in only a few bits.
type memorySlots struct {
	shift   int
	entries []*memoryRegion
}

// goldenRatio spreads neighbouring keys (Knuth's multiplicative hashing).
const goldenRatio = 0x9e3779b1

// first returns the index at which to start looking for key.
func (s *memorySlots) first(key uint32) int { return int(key * goldenRatio >> s.shift) }

// lookup returns the region with the local key, or nil.
func (t *memoryTable) lookup(key uint32) *memoryRegion {
	slots := t.current.Load()
	if slots == nil {
		return nil
	}
	for i := slots.first(key); ; i++ {
		r := slots.entries[i&(len(slots.entries)-1)]
		if r == nil || r.localKey == key {
			return r
		}
	}
}

// insert returns false if the table has a region with the same key.
func (t *memoryTable) insert(r *memoryRegion) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.regions[r.localKey] != nil {
		return false
	}
	if t.regions == nil {
		t.regions = map[uint32]*memoryRegion{}
	}
	t.regions[r.localKey] = r
	t.publish()
	return true
}

// remove removes a region, unless it has been removed.
func (t *memoryTable) remove(r *memoryRegion) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.regions[r.localKey] == r {
		delete(t.regions, r.localKey)
		t.publish()
	}
}

// publish replaces the table. The caller holds mu.
func (t *memoryTable) publish() {
	width := max(2, bits.Len(uint(2*len(t.regions))))
	slots := &memorySlots{shift: 32 - width, entries: make([]*memoryRegion, 1<<width)}
	for key, r := range t.regions {
		i := slots.first(key)
		for slots.entries[i&(len(slots.entries)-1)] != nil {
			i++
		}
		slots.entries[i&(len(slots.entries)-1)] = r
	}
	t.current.Store(slots)
}
