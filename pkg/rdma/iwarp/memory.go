package iwarp

import (
	"crypto/rand"
	"encoding/binary"
	"math"
	"sync"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// protectionDomain implements rdma.ProtectionDomain.
type protectionDomain struct {
	device *device
	uses   useCount // memory regions and connections
}

// Register implements rdma.ProtectionDomain. Only mapped memory can be taken.
func (d *protectionDomain) Register(region *memory.Region, access memory.Access) (rdma.MemoryRegion, error) {
	if !region.Mapped() {
		return nil, status.Errorf(status.NotSupported,
			"register memory of %d bytes: it belongs to a device and iwarp needs memory that the CPU can address", region.Len())
	}
	if !access.Valid() {
		return nil, status.Errorf(status.InvalidValue, "register memory: access rights %#x are not defined", uint32(access))
	}
	if !d.uses.acquire() {
		return nil, status.Errorf(status.BadState, "register memory: protection domain is closed")
	}
	r := &memoryRegion{
		uses: newUseCount(), access: access, untrusted: region.Untrusted(),
		bytes: region.Bytes(), region: region, domain: d,
	}
	if err := d.device.table.insert(r); err != nil {
		d.uses.release()
		return nil, err
	}
	return r, nil
}

// Close implements rdma.ProtectionDomain.
func (d *protectionDomain) Close() error {
	if !d.uses.revokeUnused() {
		return status.Errorf(status.InUse, "close protection domain: it has memory regions or connections, or is closed")
	}
	d.device.uses.release()
	return nil
}

// resolve finds the memory of a local segment that was posted for a use that
// needs the given rights. Without bytes no memory is needed.
func (d *protectionDomain) resolve(local rdma.Segment, rights memory.Access) (*memoryRegion, error) {
	if local.Length == 0 {
		return nil, nil
	}
	r := d.device.table.lookup(local.Key)
	if r == nil || r.domain != d {
		return nil, status.Errorf(status.InvalidValue, "local key %#x is not registered in the connection's protection domain", local.Key)
	}
	if !r.contains(local.Address, uint64(local.Length)) {
		return nil, status.Errorf(status.InvalidValue,
			"segment of %d bytes at %#x is outside the memory region of %d bytes", local.Length, local.Address, len(r.bytes))
	}
	if !r.access.Has(rights) {
		return nil, status.Errorf(status.NotPermitted, "memory region with key %#x was registered without LocalWrite", local.Key)
	}
	return r, nil
}

// memoryRegion is registered memory. Its tagged offsets are zero-based: they
// tell peers nothing about this process's addresses.
type memoryRegion struct {
	uses      useCount
	stag      uint32
	access    memory.Access
	untrusted bool
	bytes     []byte // must not be touched directly if untrusted
	region    *memory.Region
	domain    *protectionDomain

	deregister sync.Once
}

func (r *memoryRegion) LocalKey() uint32 { return r.stag }

func (r *memoryRegion) RemoteKey() uint32 { return r.stag }

func (r *memoryRegion) Base() uint64 { return 0 }

func (r *memoryRegion) Len() uint64 { return uint64(len(r.bytes)) }

// Deregister implements rdma.MemoryRegion. The first call waits for the
// system calls and copies that touch the memory right now; messages that are
// only partly sent or received do not hold it up, they fail.
func (r *memoryRegion) Deregister() error {
	r.deregister.Do(func() {
		r.domain.device.table.remove(r)
		r.uses.revoke()
		r.domain.uses.release()
	})
	return nil
}

// contains tells whether a range lies within the memory. It cannot wrap.
func (r *memoryRegion) contains(offset, length uint64) bool {
	size := uint64(len(r.bytes))
	return offset <= size && length <= size-offset
}

// copyIn and copyOut move bytes while the caller holds a use. False means
// that the memory's owner took it away.
func (r *memoryRegion) copyIn(offset uint64, source []byte) bool {
	if r.untrusted {
		return r.region.CopyIn(offset, source) == nil
	}
	copy(r.bytes[offset:], source)
	return true
}

func (r *memoryRegion) copyOut(target []byte, offset uint64) bool {
	if r.untrusted {
		return r.region.CopyOut(target, offset) == nil
	}
	copy(target, r.bytes[offset:])
	return true
}

// memoryTable finds the registered memory that an STag names. Lookups take no
// lock; changes are rare.
//
// An STag is 32 random bits, the highest of which choose the slot, so that
// neither the number of registrations nor one STag helps to guess another.
type memoryTable struct {
	slots atomic.Pointer[memorySlots]

	mu    sync.Mutex
	count int
}

type memorySlots struct {
	shift   uint8
	entries []atomic.Pointer[memoryRegion]
}

const (
	minTableBits = 6
	maxTableBits = 20
)

func newMemorySlots(bits uint8) *memorySlots {
	return &memorySlots{shift: 32 - bits, entries: make([]atomic.Pointer[memoryRegion], 1<<bits)}
}

func newMemoryTable() *memoryTable {
	t := &memoryTable{}
	t.slots.Store(newMemorySlots(minTableBits))
	return t
}

func (s *memorySlots) slot(stag uint32) *atomic.Pointer[memoryRegion] {
	return &s.entries[stag>>s.shift]
}

// lookup returns nil if nothing has this STag. A region that is being
// deregistered may still be found; it cannot be acquired.
func (t *memoryTable) lookup(stag uint32) *memoryRegion {
	if r := t.slots.Load().slot(stag).Load(); r != nil && r.stag == stag {
		return r
	}
	return nil
}

// insert gives the region an STag.
func (t *memoryTable) insert(r *memoryRegion) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.grow(); err != nil {
		return err
	}
	slots := t.slots.Load()
	for {
		stag := randomSTag()
		if slot := slots.slot(stag); stag > reservedSTags && slot.Load() == nil {
			r.stag = stag
			slot.Store(r)
			t.count++
			return nil
		}
	}
}

// reservedSTags are those that stacks put into zero-length ready-to-receive
// frames, where no memory is meant.
const reservedSTags = 1

// grow keeps at least half of the slots free, so that random probing ends.
func (t *memoryTable) grow() error {
	old := t.slots.Load()
	if 2*t.count < len(old.entries) {
		return nil
	}
	bits := 32 - old.shift + 1
	if bits > maxTableBits {
		return status.Errorf(status.Full, "device has its maximum of %d memory regions", t.count)
	}
	slots := newMemorySlots(bits)
	for i := range old.entries {
		if r := old.entries[i].Load(); r != nil {
			slots.slot(r.stag).Store(r)
		}
	}
	t.slots.Store(slots)
	return nil
}

func (t *memoryTable) remove(r *memoryRegion) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.slots.Load().slot(r.stag).Store(nil)
	t.count--
}

func randomSTag() uint32 {
	var b [4]byte
	rand.Read(b[:]) // never fails
	return binary.BigEndian.Uint32(b[:])
}

// useCount counts the uses of something that can be revoked: after revoke has
// returned there are none, and there will be none.
type useCount struct {
	count   atomic.Int64 // shifted by revoked once that has happened
	drained chan struct{}
}

const revoked = math.MinInt64 / 2

func newUseCount() useCount { return useCount{drained: make(chan struct{}, 1)} }

// acquire begins a use. False means that it has been revoked.
func (u *useCount) acquire() bool {
	if u.count.Add(1) > 0 {
		return true
	}
	u.release()
	return false
}

func (u *useCount) release() {
	if u.count.Add(-1) != revoked {
		return
	}
	select {
	case u.drained <- struct{}{}:
	default:
	}
}

// revoke forbids further uses and waits for the present ones to end. It must
// be called once.
func (u *useCount) revoke() {
	if u.count.Add(revoked) != revoked {
		<-u.drained
	}
}

// revokeUnused revokes only if there is no use.
func (u *useCount) revokeUnused() bool { return u.count.CompareAndSwap(0, revoked) }

// maxAcquired is how many regions a batch of segments mostly uses: one for
// messages and one for data, of two sessions.
const maxAcquired = 4

// regions are uses of memory regions that last for a batch of segments.
// Beginning and ending a use are atomic operations, which would cost more than
// all checks of a small segment.
type acquiredRegions struct {
	regions [maxAcquired]*memoryRegion
	count   int
}

// acquire begins a use of the region unless there is one. It lasts until release
// or the next hold. False means that the region has been deregistered.
func (h *acquiredRegions) acquire(r *memoryRegion) bool {
	for i := range h.count {
		if h.regions[i] == r {
			return true
		}
	}
	if h.count == maxAcquired {
		h.releaseAll()
	}
	if !r.uses.acquire() {
		return false
	}
	h.regions[h.count] = r
	h.count++
	return true
}

// releaseAll ends all uses.
func (h *acquiredRegions) releaseAll() {
	for i := range h.count {
		h.regions[i].uses.release()
		h.regions[i] = nil
	}
	h.count = 0
}
