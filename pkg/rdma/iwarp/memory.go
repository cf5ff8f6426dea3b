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

// protectionDomain groups memory regions with the connections that may reach them.
type protectionDomain struct {
	device *device
	uses   useCount // memory regions and connections
}

// Register makes a mapped region reachable by the domain's connections. Opaque memory is not
// supported.
func (d *protectionDomain) Register(
	region *memory.Region, access memory.Access,
) (rdma.MemoryRegion, error) {
	if !region.Mapped() {
		return nil, status.Errorf(status.NotSupported,
			"register %d bytes of opaque memory: iwarp needs memory that the CPU can access",
			region.Len())
	}
	if !access.Valid() {
		return nil, status.Errorf(status.InvalidValue,
			"register memory: invalid access rights %#x", uint32(access))
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

// Close releases the domain, which must have no memory regions and no connections.
func (d *protectionDomain) Close() error {
	if !d.uses.revokeUnused() {
		return status.Errorf(status.InUse,
			"close protection domain: it has memory regions or connections, or is already closed")
	}
	d.device.uses.release()
	return nil
}

// resolve returns the memory of a posted local segment after checking its bounds and rights. It
// returns nil for a segment of length 0.
func (d *protectionDomain) resolve(
	local rdma.Segment, rights memory.Access,
) (*memoryRegion, error) {
	if local.Length == 0 {
		return nil, nil
	}
	r := d.device.table.lookup(local.Key)
	if r == nil || r.domain != d {
		return nil, status.Errorf(status.InvalidValue,
			"local key %#x is not registered in the connection's protection domain", local.Key)
	}
	if !r.hasRange(local.Address, uint64(local.Length)) {
		return nil, status.Errorf(status.InvalidValue,
			"segment of %d bytes at %#x is outside the memory region of %d bytes",
			local.Length, local.Address, len(r.bytes))
	}
	if !r.access.Has(rights) {
		return nil, status.Errorf(status.NotPermitted,
			"memory region with key %#x was registered without LocalWrite", local.Key)
	}
	return r, nil
}

// memoryRegion is registered memory. Its tagged offsets start at 0, so that peers learn nothing
// about addresses in this process.
type memoryRegion struct {
	uses      useCount
	stag      uint32
	access    memory.Access
	untrusted bool
	bytes     []byte // must be accessed only by region's copies or system calls if untrusted
	region    *memory.Region
	domain    *protectionDomain

	deregister sync.Once
}

// LocalKey returns the STag, which names the memory in local segments.
func (r *memoryRegion) LocalKey() uint32 { return r.stag }

// RemoteKey returns the STag as well. What a peer may do with it depends on the access rights.
func (r *memoryRegion) RemoteKey() uint32 { return r.stag }

// Base returns 0, the first tagged offset.
func (r *memoryRegion) Base() uint64 { return 0 }

// Len returns the length in bytes.
func (r *memoryRegion) Len() uint64 { return uint64(len(r.bytes)) }

// Deregister revokes the keys. The first call waits for the system calls and copies that are using
// the memory at that moment. It does not wait for messages that are only partly sent or received:
// those fail.
func (r *memoryRegion) Deregister() error {
	r.deregister.Do(func() {
		r.domain.device.table.remove(r)
		r.uses.revoke()
		r.domain.uses.release()
	})
	return nil
}

// hasRange reports whether the range is within the memory. The computation cannot wrap around.
func (r *memoryRegion) hasRange(offset, length uint64) bool {
	size := uint64(len(r.bytes))
	return offset <= size && length <= size-offset
}

// copyIn copies source into the memory. The caller has acquired the region. It returns false if the
// memory's owner has made it inaccessible.
func (r *memoryRegion) copyIn(offset uint64, source []byte) bool {
	if r.untrusted {
		return r.region.CopyIn(offset, source) == nil
	}
	copy(r.bytes[offset:], source)
	return true
}

// copyOut copies from the memory to target, under the same conditions as copyIn.
func (r *memoryRegion) copyOut(target []byte, offset uint64) bool {
	if r.untrusted {
		return r.region.CopyOut(target, offset) == nil
	}
	copy(target, r.bytes[offset:])
	return true
}

// memoryTable maps STags to memory regions. Lookups take no lock. Changes are rare.
//
// An STag is a 32-bit random number whose highest bits select the slot. So neither the number of
// registrations nor a known STag helps to guess another.
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

// lookup returns the region with the given STag, or nil. It may still return a region that is being
// deregistered, but such a region cannot be acquired. Any goroutine may call it.
func (t *memoryTable) lookup(stag uint32) *memoryRegion {
	if r := t.slots.Load().slot(stag).Load(); r != nil && r.stag == stag {
		return r
	}
	return nil
}

// insert assigns an STag to the region and adds it.
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

// reservedSTags is the highest STag that is never assigned. Implementations use 0 and 1 in
// zero-length ready-to-receive frames, which refer to no memory.
const reservedSTags = 1

// grow keeps at least half of the slots free, so that insert finds one soon.
func (t *memoryTable) grow() error {
	old := t.slots.Load()
	if 2*t.count < len(old.entries) {
		return nil
	}
	bits := 32 - old.shift + 1
	if bits > maxTableBits {
		return status.Errorf(status.Full,
			"register memory: the device has reached its maximum of %d memory regions", t.count)
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

// useCount counts references to something that can be revoked. After revoke returns, there are no
// references, and none can be added. Any goroutine may call its methods.
type useCount struct {
	count   atomic.Int64 // references, plus the constant revoked once they are revoked
	drained chan struct{}
}

const revoked = math.MinInt64 / 2

func newUseCount() useCount { return useCount{drained: make(chan struct{}, 1)} }

// acquire adds a reference. It returns false if the references have been revoked.
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

// revoke makes acquire fail from now on and waits until all references are released. It must be
// called only once.
func (u *useCount) revoke() {
	if u.count.Add(revoked) != revoked {
		<-u.drained
	}
}

// revokeUnused revokes only if there are no references, and reports whether it did.
func (u *useCount) revokeUnused() bool { return u.count.CompareAndSwap(0, revoked) }

// maxAcquired is the most regions that a batch of segments usually refers to: one for messages and
// one for data, in each of two sessions.
const maxAcquired = 4

// acquiredRegions holds references to memory regions for the duration of a batch of segments.
// Acquiring and releasing them for each segment would take two atomic operations, which cost more
// than all checks of a small segment.
type acquiredRegions struct {
	regions [maxAcquired]*memoryRegion
	count   int
}

// acquire acquires the region unless it is already in the set. The caller may use the region only
// until the next acquire or releaseAll. It returns false if the region has been deregistered.
func (a *acquiredRegions) acquire(r *memoryRegion) bool {
	for i := range a.count {
		if a.regions[i] == r {
			return true
		}
	}
	if a.count == maxAcquired {
		a.releaseAll()
	}
	if !r.uses.acquire() {
		return false
	}
	a.regions[a.count] = r
	a.count++
	return true
}

// releaseAll releases all regions.
func (a *acquiredRegions) releaseAll() {
	for i := range a.count {
		a.regions[i].uses.release()
		a.regions[i] = nil
	}
	a.count = 0
}
