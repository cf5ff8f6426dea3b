// SPDX-License-Identifier: Apache-2.0

// Package registration keeps the registered memory of RDMA providers that move data by software:
// the keys, their rights, and who is using a region at the moment.
package registration

import (
	"crypto/rand"
	"encoding/binary"
	"math"
	"sync"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/internal/blockcopy"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Domain is a protection domain: it groups memory regions with the connections that may reach them.
type Domain struct {
	provider string
	table    *Table
	uses     UseCount // memory regions and connections
	closed   func()
}

// NewDomain creates a protection domain whose regions get their keys from table. provider is for
// errors. Close calls closed once.
func NewDomain(provider string, table *Table, closed func()) *Domain {
	return &Domain{provider: provider, table: table, uses: NewUseCount(), closed: closed}
}

// Table returns the table that the domain's regions are in.
func (d *Domain) Table() *Table { return d.table }

// Activate records that connections of the domain move bytes, and reports whether those of another
// domain of its table were the last to do so. Each session has a domain of its own.
func (d *Domain) Activate() (contended bool) {
	last := d.table.active.Load()
	if last == d {
		return false
	}
	d.table.active.Store(d)
	return last != nil
}

// Acquire adds a connection to the domain. It returns false if the domain is closed.
func (d *Domain) Acquire() bool { return d.uses.Acquire() }

// Release removes a connection from the domain.
func (d *Domain) Release() { d.uses.Release() }

// Register makes a mapped region reachable by the domain's connections. Opaque memory is not
// supported.
func (d *Domain) Register(
	region *memory.Region, access memory.Access,
) (rdma.MemoryRegion, error) {
	if !region.Mapped() {
		return nil, status.Errorf(status.NotSupported,
			"register %d bytes of opaque memory: %s needs memory that the CPU can access",
			region.Len(), d.provider)
	}
	if !access.Valid() {
		return nil, status.Errorf(status.InvalidValue,
			"register memory: invalid access rights %#x", uint32(access))
	}
	if !d.uses.Acquire() {
		return nil, status.Errorf(status.BadState, "register memory: protection domain is closed")
	}
	r := &Region{
		uses: NewUseCount(), access: access, untrusted: region.Untrusted(),
		bytes: region.Bytes(), region: region, domain: d,
	}
	if err := d.table.insert(r); err != nil {
		d.uses.Release()
		return nil, err
	}
	return r, nil
}

// Close releases the domain, which must have no memory regions and no connections.
func (d *Domain) Close() error {
	if !d.uses.RevokeUnused() {
		return status.Errorf(status.InUse,
			"close protection domain: it has memory regions or connections, or is already closed")
	}
	d.closed()
	return nil
}

// Find returns the memory that a key names, if connections of the domain may use that range of it
// in that way. Memory is not needed, and nil, if the length is 0. Both sides of a transfer are
// checked here: the local segments of posted requests, and what a peer names.
func (d *Domain) Find(
	key uint32, offset uint64, length uint32, rights memory.Access,
) (*Region, Refusal) {
	if length == 0 {
		return nil, Granted
	}
	r := d.table.Lookup(key)
	switch {
	case r == nil:
		return nil, UnknownKey
	case r.domain != d:
		return nil, OtherDomain
	case !r.access.Has(rights):
		return nil, MissingRights
	case offset+uint64(length) < offset:
		return nil, WrapsAround
	case offset+uint64(length) > uint64(len(r.bytes)):
		return nil, OutOfBounds
	}
	return r, Granted
}

// Refusal says why Find has found no memory. The first reason counts.
type Refusal uint8

const (
	Granted       Refusal = iota
	UnknownKey            // no memory has the key
	OtherDomain           // the memory belongs to another domain
	MissingRights         // it was registered without the rights
	WrapsAround           // the range wraps around
	OutOfBounds           // the range is not within the memory
)

// LocalError returns why a posted request cannot use a local segment.
func (d *Domain) LocalError(local *rdma.Segment, refusal Refusal) error {
	switch refusal {
	case UnknownKey, OtherDomain:
		return status.Errorf(status.InvalidValue,
			"local key %#x is not registered in the connection's protection domain", local.Key)
	case MissingRights:
		return status.Errorf(status.NotPermitted,
			"memory region with key %#x was registered without LocalWrite", local.Key)
	}
	return status.Errorf(status.InvalidValue,
		"segment of %d bytes at %#x is outside the memory region of %d bytes",
		local.Length, local.Address, d.LengthOf(local.Key))
}

// LengthOf returns how many bytes the memory with a key has, for errors.
func (d *Domain) LengthOf(key uint32) uint64 {
	if r := d.table.Lookup(key); r != nil {
		return r.Len()
	}
	return 0 // it has been deregistered meanwhile
}

// Region is registered memory. Its addresses start at 0, so that peers learn nothing about
// addresses in this process.
type Region struct {
	uses      UseCount
	key       uint32
	access    memory.Access
	untrusted bool
	bytes     []byte // must be accessed only by region's copies or system calls if untrusted
	region    *memory.Region
	domain    *Domain

	deregister sync.Once
}

// LocalKey returns the key, which names the memory in local segments.
func (r *Region) LocalKey() uint32 { return r.key }

// RemoteKey returns the key as well. What a peer may do with it depends on the access rights.
func (r *Region) RemoteKey() uint32 { return r.key }

// Base returns 0, the first address.
func (r *Region) Base() uint64 { return 0 }

// Len returns the length in bytes.
func (r *Region) Len() uint64 { return uint64(len(r.bytes)) }

// Domain returns the domain whose connections may use the region.
func (r *Region) Domain() *Domain { return r.domain }

// Memory returns what was registered.
func (r *Region) Memory() *memory.Region { return r.region }

// Bytes returns the memory. If it is untrusted, only system calls may touch it.
func (r *Region) Bytes() []byte { return r.bytes }

// Untrusted reports whether touching the memory may fault.
func (r *Region) Untrusted() bool { return r.untrusted }

// Acquire keeps Deregister from returning until Release. It returns false if the region has been
// deregistered.
func (r *Region) Acquire() bool { return r.uses.Acquire() }

// Release undoes an Acquire.
func (r *Region) Release() { r.uses.Release() }

// Deregister revokes the keys. The first call waits for the system calls and copies that are using
// the memory at that moment. It does not wait for messages that are only partly sent or received:
// those fail.
func (r *Region) Deregister() error {
	r.deregister.Do(func() {
		r.domain.table.Remove(r)
		r.uses.Revoke()
		r.domain.uses.Release()
	})
	return nil
}

// CopyIn copies source into the memory. The caller has acquired the region. It returns false if the
// memory's owner has made it inaccessible.
func (r *Region) CopyIn(offset uint64, source []byte) bool {
	if r.untrusted {
		return r.region.CopyIn(offset, source) == nil
	}
	blockcopy.Store(r.bytes[offset:], source)
	return true
}

// CopyOut copies from the memory to target, under the same conditions as CopyIn.
func (r *Region) CopyOut(target []byte, offset uint64) bool {
	if r.untrusted {
		return r.region.CopyOut(target, offset) == nil
	}
	copy(target, r.bytes[offset:])
	return true
}

// Table maps keys to memory regions. Lookups take no lock. Changes are rare.
//
// A key is a 32-bit random number whose highest bits select the slot. So neither the number of
// registrations nor a known key helps to guess another.
type Table struct {
	slots  atomic.Pointer[slots]
	active atomic.Pointer[Domain] // whose connections were the last to move bytes

	mu    sync.Mutex
	count int
}

type slots struct {
	shift   uint8
	entries []atomic.Pointer[Region]
}

const (
	minTableBits = 6
	maxTableBits = 20
)

func newSlots(bits uint8) *slots {
	return &slots{shift: 32 - bits, entries: make([]atomic.Pointer[Region], 1<<bits)}
}

// NewTable returns an empty table.
func NewTable() *Table {
	t := &Table{}
	t.slots.Store(newSlots(minTableBits))
	return t
}

func (s *slots) slot(key uint32) *atomic.Pointer[Region] {
	return &s.entries[key>>s.shift]
}

// Lookup returns the region with the given key, or nil. It may still return a region that is being
// deregistered, but such a region cannot be acquired. Any goroutine may call it.
func (t *Table) Lookup(key uint32) *Region {
	if r := t.slots.Load().slot(key).Load(); r != nil && r.key == key {
		return r
	}
	return nil
}

// insert assigns a key to the region and adds it.
func (t *Table) insert(r *Region) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.grow(); err != nil {
		return err
	}
	slots := t.slots.Load()
	for {
		key := RandomKey()
		if slot := slots.slot(key); key > ReservedKeys && slot.Load() == nil {
			r.key = key
			slot.Store(r)
			t.count++
			return nil
		}
	}
}

// ReservedKeys is the highest key that is never assigned. Implementations use 0 and 1 in
// zero-length ready-to-receive frames, which refer to no memory.
const ReservedKeys = 1

// grow keeps at least half of the slots free, so that insert finds one soon.
func (t *Table) grow() error {
	old := t.slots.Load()
	if 2*t.count < len(old.entries) {
		return nil
	}
	bits := 32 - old.shift + 1
	if bits > maxTableBits {
		return status.Errorf(status.Full,
			"register memory: the device has reached its maximum of %d memory regions", t.count)
	}
	slots := newSlots(bits)
	for i := range old.entries {
		if r := old.entries[i].Load(); r != nil {
			slots.slot(r.key).Store(r)
		}
	}
	t.slots.Store(slots)
	return nil
}

// Regions returns all regions, for tests.
func (t *Table) Regions() (all []*Region) {
	slots := t.slots.Load()
	for i := range slots.entries {
		if r := slots.entries[i].Load(); r != nil {
			all = append(all, r)
		}
	}
	return all
}

// Rekey gives a region a key of the caller's choice, which must be free. Fuzz targets use it, so
// that the fuzzer can learn the key.
func (t *Table) Rekey(r *Region, key uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	slots := t.slots.Load()
	slots.slot(r.key).Store(nil)
	r.key = key
	slots.slot(key).Store(r)
}

// Remove frees the key of a region.
func (t *Table) Remove(r *Region) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.slots.Load().slot(r.key).Store(nil)
	t.count--
}

// RandomKey returns a key that nobody can guess.
func RandomKey() uint32 {
	var b [4]byte
	rand.Read(b[:]) // never fails
	return binary.BigEndian.Uint32(b[:])
}

// UseCount counts references to something that can be revoked. After Revoke returns, there are no
// references, and none can be added. Any goroutine may call its methods.
type UseCount struct {
	count  atomic.Int64 // references, plus the constant revoked once they are revoked
	unused chan struct{}
}

const revoked = math.MinInt64 / 2

// NewUseCount returns a count without references.
func NewUseCount() UseCount { return UseCount{unused: make(chan struct{}, 1)} }

// Acquire adds a reference. It returns false if the references have been revoked.
func (u *UseCount) Acquire() bool {
	if u.count.Add(1) > 0 {
		return true
	}
	u.Release()
	return false
}

// Release removes a reference.
func (u *UseCount) Release() {
	if u.count.Add(-1) != revoked {
		return
	}
	select {
	case u.unused <- struct{}{}:
	default:
	}
}

// Revoke makes Acquire fail from now on and waits until all references are released. It must be
// called only once.
func (u *UseCount) Revoke() {
	if u.count.Add(revoked) != revoked {
		<-u.unused
	}
}

// RevokeUnused revokes only if there are no references, and reports whether it did.
func (u *UseCount) RevokeUnused() bool { return u.count.CompareAndSwap(0, revoked) }

// maxAcquired is the most regions that a batch of segments usually refers to: one for messages and
// one for data, in each of two sessions.
const maxAcquired = 4

// Held holds references to memory regions for the duration of a batch of segments.
// Acquiring and releasing them for each segment would take two atomic operations, which cost more
// than all checks of a small segment.
type Held struct {
	regions [maxAcquired]*Region
	count   int
}

// Acquire acquires the region unless it is already in the set. The caller may use the region only
// until the next Acquire or ReleaseAll. It returns false if the region has been deregistered.
func (a *Held) Acquire(r *Region) bool {
	for i := range a.count {
		if a.regions[i] == r {
			return true
		}
	}
	if a.count == maxAcquired {
		a.ReleaseAll()
	}
	if !r.uses.Acquire() {
		return false
	}
	a.regions[a.count] = r
	a.count++
	return true
}

// ReleaseAll releases all regions.
func (a *Held) ReleaseAll() {
	for i := range a.count {
		a.regions[i].uses.Release()
		a.regions[i] = nil
	}
	a.count = 0
}
