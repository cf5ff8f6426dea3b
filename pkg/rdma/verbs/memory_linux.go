//go:build verbs

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

// protectionDomain implements rdma.ProtectionDomain.
type protectionDomain struct {
	device   *device
	pd       *ibv.ProtectionDomain
	regions  memoryTable
	uses     atomic.Int64   // memory regions and connections; closed if negative
	discards sync.WaitGroup // connections that have been abandoned
}

// Register implements rdma.ProtectionDomain. Only mapped memory can be taken.
func (d *protectionDomain) Register(region *memory.Region, access memory.Access) (rdma.MemoryRegion, error) {
	if !region.Mapped() {
		return nil, status.Errorf(status.NotSupported,
			"register memory of %d bytes: it belongs to a device of its own and verbs needs memory that the CPU can address", region.Len())
	}
	if !access.Valid() {
		return nil, status.Errorf(status.InvalidValue, "register memory: access rights %#x are not defined", uint32(access))
	}
	if region.Len() > d.device.limits.RegionBytes {
		return nil, status.Errorf(status.TooBig, "register memory: %d bytes are more than the %d that %s takes at once",
			region.Len(), d.device.limits.RegionBytes, d.device.location.device)
	}
	if !d.acquire() {
		return nil, status.Errorf(status.BadState, "register memory: protection domain is closed")
	}
	mr, err := d.pd.Register(region.Bytes(), deviceAccess(access))
	if err != nil {
		d.release()
		return nil, fmt.Errorf("register memory of %d bytes on %s: %w", region.Len(), d.device.location.device, err)
	}
	r := &memoryRegion{
		domain: d, mr: mr, localKey: mr.LocalKey(), base: mr.Address(), length: region.Len(),
		access: access, untrusted: region.Untrusted(),
	}
	d.regions.insert(r)
	return r, nil
}

// deviceAccess translates rights. Whoever grants remote writes has to grant
// local ones to the device too (IBTA volume 1, 10.6.3.1).
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

// Close implements rdma.ProtectionDomain.
func (d *protectionDomain) Close() error {
	d.discards.Wait()
	if !d.uses.CompareAndSwap(0, math.MinInt64/2) {
		return status.Errorf(status.InUse, "close protection domain: it has memory regions or connections, or is closed")
	}
	err := d.pd.Close()
	d.device.release()
	return err
}

func (d *protectionDomain) acquire() bool {
	if d.uses.Add(1) > 0 {
		return true
	}
	d.release()
	return false
}

func (d *protectionDomain) release() { d.uses.Add(-1) }

// memoryRegion implements rdma.MemoryRegion. Its addresses are those of this
// process: not every driver can register memory under others.
type memoryRegion struct {
	domain    *protectionDomain
	mr        *ibv.MemoryRegion
	localKey  uint32
	base      uint64
	length    uint64
	access    memory.Access
	untrusted bool // the CPU must not touch it directly

	deregister sync.Once
	failure    error
}

func (r *memoryRegion) LocalKey() uint32 { return r.localKey }

func (r *memoryRegion) RemoteKey() uint32 { return r.mr.RemoteKey() }

func (r *memoryRegion) Base() uint64 { return r.base }

func (r *memoryRegion) Len() uint64 { return r.length }

// Deregister implements rdma.MemoryRegion. The device waits for what touches
// the memory and fails later accesses; it needs no thread of this process to
// do so. siw does not wait, so this does in its place.
func (r *memoryRegion) Deregister() error {
	r.deregister.Do(func() {
		r.domain.regions.remove(r)
		r.failure = r.mr.Deregister()
		if r.domain.device.limits.SoftIWARP {
			awaitKernelCopies()
		}
		r.domain.release()
	})
	return r.failure
}

// awaitKernelCopies waits until copies that the kernel is making into user
// memory at this moment have ended. siw places data while preemption is
// disabled, and membarrier's global command returns when every core has been
// through a state in which it is not (synchronize_rcu). It costs some 10 ms,
// and is not there with isolated cores (nohz_full).
func awaitKernelCopies() {
	const membarrierGlobal = 1 // MEMBARRIER_CMD_GLOBAL
	_, _, _ = unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0)
}

// resolve finds the memory of a local segment that was posted for a use that
// needs the given rights. Without bytes no memory is needed.
func (d *protectionDomain) resolve(segment *rdma.Segment, rights memory.Access) (*memoryRegion, error) {
	if segment.Length == 0 {
		return nil, nil
	}
	r := d.regions.lookup(segment.Key)
	if r == nil {
		return nil, status.Errorf(status.InvalidValue, "local key %#x is not registered in the connection's protection domain", segment.Key)
	}
	if !r.hasRange(segment.Address, uint64(segment.Length)) {
		return nil, status.Errorf(status.InvalidValue, "segment of %d bytes at %#x is outside the memory region of %d bytes at %#x",
			segment.Length, segment.Address, r.length, r.base)
	}
	if !r.access.Has(rights) {
		return nil, status.Errorf(status.NotPermitted, "memory region with key %#x was registered without LocalWrite", segment.Key)
	}
	return r, nil
}

// contains tells whether a range lies within the memory. It cannot wrap.
func (r *memoryRegion) hasRange(address, length uint64) bool {
	offset := address - r.base
	return address >= r.base && offset <= r.length && length <= r.length-offset
}

// memoryTable finds the memory regions of a protection domain by their local
// keys. Lookups take no lock; a change, which is rare, replaces the table.
type memoryTable struct {
	current atomic.Pointer[memorySlots]

	mu      sync.Mutex
	regions map[uint32]*memoryRegion
}

// memorySlots is a hash table with open addressing, at most half full. Keys
// are the device's choice and may differ in few bits only.
type memorySlots struct {
	shift   int
	entries []*memoryRegion
}

// golden spreads neighbouring keys (Knuth's multiplicative hashing).
const golden = 0x9e3779b1

func (s *memorySlots) first(key uint32) int { return int(key * golden >> s.shift) }

// lookup returns nil if nothing has this key.
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

func (t *memoryTable) insert(r *memoryRegion) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.regions == nil {
		t.regions = map[uint32]*memoryRegion{}
	}
	t.regions[r.localKey] = r
	t.publish()
}

func (t *memoryTable) remove(r *memoryRegion) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.regions, r.localKey)
	t.publish()
}

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
