package dma

import (
	"fmt"
	"math"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Inventory is a fixed number of buffer descriptors (doca_buf_inventory).
// Taking a buffer allocates no memory, so it can be done on the data path. An
// inventory and its buffers belong to one thread at a time.
type Inventory struct {
	phase   phase
	buffers []Buffer
	free    []*Buffer
}

// maxElements bounds an inventory.
const maxElements = 1 << 20

// NewInventory makes an inventory of the given number of buffers, between 1
// and 1 Mi.
func NewInventory(elements int) (*Inventory, error) {
	if elements < 1 || elements > maxElements {
		return nil, status.Errorf(status.InvalidValue, "create buffer inventory: %d elements are not within 1 and %d", elements, maxElements)
	}
	v := &Inventory{buffers: make([]Buffer, elements), free: make([]*Buffer, 0, elements)}
	for i := range v.buffers {
		v.buffers[i].inventory = v
		v.free = append(v.free, &v.buffers[i])
	}
	return v, nil
}

// Start makes buffers available. status.BadState if it was started before.
func (v *Inventory) Start() error {
	if v.phase != configuring {
		return status.Errorf(status.BadState, "start buffer inventory: it is %s", v.phase)
	}
	v.phase = started
	return nil
}

// Stop ends what Start began. status.InUse while buffers are out.
func (v *Inventory) Stop() error {
	if v.phase != started {
		return status.Errorf(status.BadState, "stop buffer inventory: it is %s", v.phase)
	}
	return v.stop(configuring)
}

func (v *Inventory) stop(next phase) error {
	if out := len(v.buffers) - len(v.free); out > 0 {
		return status.Errorf(status.InUse, "stop buffer inventory: %d of its buffers are in use: drop their references first", out)
	}
	v.phase = next
	return nil
}

// Close stops the inventory if it is started, and gives it up. status.InUse
// while buffers are out. Closing it again does nothing.
func (v *Inventory) Close() error { return v.stop(closed) }

// Elements is how many buffers there are.
func (v *Inventory) Elements() int { return len(v.buffers) }

// FreeElements is how many of them can be taken.
func (v *Inventory) FreeElements() int { return len(v.free) }

// ByAddress takes a buffer of length bytes at address, without data: a
// destination. Addresses count from the Base of the map's region, which is 0
// for memory that is mapped. status.InvalidValue if the range is not within the
// map, status.NoMemory if all buffers are out, status.BadState if the inventory
// or the map is not started.
func (v *Inventory) ByAddress(m *MemoryMap, address, length uint64) (*Buffer, error) {
	return v.claim(m, address, length, 0)
}

// ByData takes a buffer of length bytes at address that is full of data: a
// source. It fails as ByAddress does.
func (v *Inventory) ByData(m *MemoryMap, address, length uint64) (*Buffer, error) {
	return v.claim(m, address, length, length)
}

// Duplicate takes a buffer with the range and data of another, in no list.
func (v *Inventory) Duplicate(b *Buffer) (*Buffer, error) {
	if err := b.checkClaimed("duplicate buffer"); err != nil {
		return nil, err
	}
	twin, err := v.claim(b.memory, b.head, b.length, b.dataLength)
	if err != nil {
		return nil, err
	}
	twin.data = b.data
	return twin, nil
}

func (v *Inventory) claim(m *MemoryMap, address, length, dataLength uint64) (*Buffer, error) {
	if v.phase != started {
		return nil, status.Errorf(status.BadState, "take buffer: the inventory is %s", v.phase)
	}
	if m == nil {
		return nil, status.Errorf(status.InvalidValue, "take buffer: there is no memory map")
	}
	if len(v.free) == 0 {
		return nil, status.Errorf(status.NoMemory, "take buffer: all %d of the inventory are in use", len(v.buffers))
	}
	if err := m.addBuffer(address, length); err != nil {
		return nil, fmt.Errorf("take buffer: %w", err)
	}
	b := v.free[len(v.free)-1]
	v.free = v.free[:len(v.free)-1]
	*b = Buffer{
		inventory: v, memory: m, head: address, length: length, data: address, dataLength: dataLength,
		references: 1, elements: 1,
	}
	b.last = b
	return b, nil
}

// put takes a buffer back.
func (v *Inventory) release(b *Buffer) {
	b.memory.removeBuffer()
	*b = Buffer{inventory: v}
	v.free = append(v.free, b)
}

// Buffer describes a range of a memory map, and within it the range that holds
// data (doca_buf). A job copies the data of its source and appends it to the
// data of its destination. Buffers come from an Inventory, are counted by
// references, and belong to the thread of their inventory. After the last
// reference was dropped a Buffer must not be used: it may be another one by
// then.
type Buffer struct {
	inventory  *Inventory
	memory     *MemoryMap
	head       uint64 // address of the range
	length     uint64 // bytes of the range
	data       uint64 // address of the data
	dataLength uint64

	references int // 0 in the inventory, and in a list except at its head
	jobs       int // jobs in flight that use the buffer

	// The list: next is the buffer that follows. The head also knows the last
	// one, and how many there are. A buffer alone is a list of one.
	next     *Buffer
	last     *Buffer
	elements int
}

// maxReferences is what doca_buf counts up to.
const maxReferences = math.MaxUint16

// alive fails if the buffer is in the inventory.
func (b *Buffer) checkClaimed(what string) error {
	if b == nil {
		return status.Errorf(status.InvalidValue, "%s: there is none", what)
	}
	if b.memory == nil {
		return status.Errorf(status.BadState, "%s: its last reference was dropped", what)
	}
	return nil
}

// changeable fails if the buffer is in the inventory, or a job uses it.
func (b *Buffer) checkUnused(what string) error {
	if err := b.checkClaimed(what); err != nil {
		return err
	}
	if b.jobs > 0 {
		return status.Errorf(status.InUse, "%s: %d jobs in flight use it", what, b.jobs)
	}
	return nil
}

// Memory is the map that the buffer is part of.
func (b *Buffer) Memory() *MemoryMap { return b.memory }

// Range is the whole buffer: its address in the map, and its bytes.
func (b *Buffer) Range() (address, length uint64) { return b.head, b.length }

// Data is where data is in the buffer: its address in the map, and its bytes.
func (b *Buffer) Data() (address, length uint64) { return b.data, b.dataLength }

// SetData says where data is. status.InvalidValue if that is not within the
// buffer, status.InUse if a job uses it.
func (b *Buffer) SetData(address, length uint64) error {
	if err := b.checkUnused("set data of buffer"); err != nil {
		return err
	}
	if address < b.head || address-b.head > b.length || length > b.length-(address-b.head) {
		return status.Errorf(status.InvalidValue, "set data of buffer: %d bytes at %#x are not within its %d bytes at %#x",
			length, address, b.length, b.head)
	}
	b.data, b.dataLength = address, length
	return nil
}

// ResetData makes the buffer empty: the next job puts its data where the data
// was.
func (b *Buffer) ResetData() error {
	if err := b.checkUnused("reset data of buffer"); err != nil {
		return err
	}
	b.dataLength = 0
	return nil
}

// room is how many bytes fit behind the data.
func (b *Buffer) room() uint64 { return b.head + b.length - (b.data + b.dataLength) }

// References is how many references there are to the buffer, or to the list
// that it heads.
func (b *Buffer) References() int { return b.references }

// AddReference adds a reference and returns the new number. status.NotPermitted
// in a list, except at its head; status.TooBig beyond 65535.
func (b *Buffer) AddReference() (int, error) {
	if err := b.checkHead("add reference to buffer"); err != nil {
		return b.references, err
	}
	if b.references == maxReferences {
		return b.references, status.Errorf(status.TooBig, "add reference to buffer: it has %d", b.references)
	}
	b.references++
	return b.references, nil
}

// RemoveReference drops a reference and returns how many are left. With the
// last one the buffer, and the whole list that it heads, goes back to the
// inventory. status.BadState if it is there already, status.NotPermitted in a
// list except at its head, status.InUse if a job uses it.
func (b *Buffer) RemoveReference() (int, error) {
	const what = "remove reference to buffer"
	if err := b.checkHead(what); err != nil {
		return 0, err
	}
	if b.references > 1 {
		b.references--
		return b.references, nil
	}
	if err := b.checkUnused(what); err != nil {
		return b.references, err
	}
	for e := b; e != nil; {
		next := e.next
		e.inventory.release(e)
		e = next
	}
	return 0, nil
}

// counted fails if references to the buffer are not counted.
func (b *Buffer) checkHead(what string) error {
	if err := b.checkClaimed(what); err != nil {
		return err
	}
	if b.references == 0 {
		return status.Errorf(status.NotPermitted, "%s: it is in a list, of which only the head has references", what)
	}
	return nil
}

// Chain appends the list that next heads to the list that b heads, and takes
// over the only reference to it. A job then copies from all of them, in order.
// status.InvalidValue if either is not the head of a list of its own,
// status.InUse if a job uses one of them or next has more references.
func (b *Buffer) Chain(next *Buffer) error {
	const what = "chain buffers"
	for _, head := range []*Buffer{b, next} {
		if err := head.checkUnused(what); err != nil {
			return err
		}
		if head.references == 0 {
			return status.Errorf(status.InvalidValue, "%s: one is in the middle of a list", what)
		}
	}
	if b == next {
		return status.Errorf(status.InvalidValue, "%s: a list cannot follow itself", what)
	}
	if next.references > 1 {
		return status.Errorf(status.InUse, "%s: there are %d references to the second", what, next.references)
	}
	b.last.next = next
	b.last = next.last
	b.elements += next.elements
	next.references, next.last, next.elements = 0, nil, 0
	return nil
}

// Unchain cuts the list that b heads in front of tail, which then heads a list
// of its own, with one reference. status.InvalidValue if tail does not follow
// b in its list.
func (b *Buffer) Unchain(tail *Buffer) error {
	const what = "unchain buffers"
	if err := b.checkUnused(what); err != nil {
		return err
	}
	if b.references == 0 {
		return status.Errorf(status.InvalidValue, "%s: the first is in the middle of a list", what)
	}
	before, position := b, 1
	for before.next != nil && before.next != tail {
		before, position = before.next, position+1
	}
	if before.next == nil {
		return status.Errorf(status.InvalidValue, "%s: the second is not in the list of the first", what)
	}
	tail.references, tail.last, tail.elements = 1, b.last, b.elements-position
	before.next, b.last, b.elements = nil, before, position
	return nil
}

// Next is the buffer that follows in the list, nil at its end.
func (b *Buffer) Next() *Buffer { return b.next }

// ListLength is how many buffers the list has that b heads; 0 if b is not the
// head.
func (b *Buffer) ListLength() int { return b.elements }
