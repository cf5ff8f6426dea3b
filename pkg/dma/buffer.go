// SPDX-License-Identifier: Apache-2.0

package dma

import (
	"fmt"
	"math"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Inventory is a fixed number of buffer descriptors (doca_buf_inventory). Claiming a buffer
// allocates no memory, so it can be done on the data path. An inventory and its buffers belong to
// one thread at a time.
type Inventory struct {
	phase   phase
	buffers []Buffer
	free    []*Buffer
}

// maxElements bounds the size of an inventory.
const maxElements = 1 << 20

// NewInventory returns an inventory with the given number of buffers, from 1 to 1 Mi.
func NewInventory(elements int) (*Inventory, error) {
	if elements < 1 || elements > maxElements {
		return nil, status.Errorf(status.InvalidValue,
			"create buffer inventory: number of elements %d is not between 1 and %d",
			elements, maxElements)
	}
	v := &Inventory{buffers: make([]Buffer, elements), free: make([]*Buffer, 0, elements)}
	for i := range v.buffers {
		v.buffers[i].inventory = v
		v.free = append(v.free, &v.buffers[i])
	}
	return v, nil
}

// Start makes the buffers available. It fails with status.BadState if the inventory is started.
func (v *Inventory) Start() error {
	if v.phase != configuring {
		return status.Errorf(status.BadState, "start buffer inventory: it is %s", v.phase)
	}
	v.phase = started
	return nil
}

// Stop undoes Start. It fails with status.InUse while buffers are claimed.
func (v *Inventory) Stop() error {
	if v.phase != started {
		return status.Errorf(status.BadState, "stop buffer inventory: it is %s", v.phase)
	}
	return v.stop(configuring)
}

func (v *Inventory) stop(next phase) error {
	if out := len(v.buffers) - len(v.free); out > 0 {
		return status.Errorf(status.InUse,
			"stop buffer inventory: %d of its buffers are claimed: drop their references first",
			out)
	}
	v.phase = next
	return nil
}

// Close stops the inventory if it is started, and releases it. It fails with status.InUse while
// buffers are claimed. Closing a closed inventory does nothing.
func (v *Inventory) Close() error { return v.stop(closed) }

// Elements returns the number of buffers, claimed or not.
func (v *Inventory) Elements() int { return len(v.buffers) }

// FreeElements returns the number of buffers that can be claimed.
func (v *Inventory) FreeElements() int { return len(v.free) }

// ByAddress claims a buffer of length bytes at address that holds no data: a destination. Addresses
// start at the Base of the map's region, which is 0 for mapped memory. ByAddress fails with
// status.InvalidValue if the range is outside the map, with status.NoMemory if all buffers are
// claimed, and with status.BadState if the inventory or the map is not started.
func (v *Inventory) ByAddress(m *MemoryMap, address, length uint64) (*Buffer, error) {
	return v.claim(m, address, length, 0)
}

// ByData claims a buffer of length bytes at address that is full of data: a source. It fails in the
// same cases as ByAddress.
func (v *Inventory) ByData(m *MemoryMap, address, length uint64) (*Buffer, error) {
	return v.claim(m, address, length, length)
}

// Duplicate claims a buffer with the range and the data of b. The duplicate is in no list.
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
		return nil, status.Errorf(status.BadState, "claim buffer: the inventory is %s", v.phase)
	}
	if m == nil {
		return nil, status.Errorf(status.InvalidValue, "claim buffer: no memory map")
	}
	if len(v.free) == 0 {
		return nil, status.Errorf(status.NoMemory,
			"claim buffer: all %d of the inventory are claimed", len(v.buffers))
	}
	if err := m.addBuffer(address, length); err != nil {
		return nil, fmt.Errorf("claim buffer: %w", err)
	}
	b := v.free[len(v.free)-1]
	v.free = v.free[:len(v.free)-1]
	*b = Buffer{
		inventory: v, memory: m, head: address, length: length, data: address,
		dataLength: dataLength, references: 1, elements: 1,
	}
	b.last = b
	return b, nil
}

// release returns a buffer without references to the inventory.
func (v *Inventory) release(b *Buffer) {
	b.memory.removeBuffer()
	*b = Buffer{inventory: v}
	v.free = append(v.free, b)
}

// Buffer is a range of a memory map, and within it the range that holds data (doca_buf). A job
// copies the data of its source and appends it to the data of its destination. Buffers come from an
// Inventory, count their references, and belong to the thread of the inventory. A Buffer must not
// be used after its last reference has been dropped, because the inventory may have reused it.
type Buffer struct {
	inventory  *Inventory
	memory     *MemoryMap
	head       uint64 // address of the range
	length     uint64 // bytes of the range
	data       uint64 // address of the data
	dataLength uint64

	references int // 0 for a free buffer, and in a list for all but the head
	jobs       int // jobs in flight that use the buffer

	// A buffer alone is a list of one. Only the head of a list has last and elements.
	next     *Buffer
	last     *Buffer
	elements int
}

// maxReferences is the maximum of doca_buf.
const maxReferences = math.MaxUint16

// checkClaimed fails if the buffer is in the inventory.
func (b *Buffer) checkClaimed(what string) error {
	if b == nil {
		return status.Errorf(status.InvalidValue, "%s: the buffer is nil", what)
	}
	if b.memory == nil {
		return status.Errorf(status.BadState, "%s: the buffer has been released", what)
	}
	return nil
}

// checkUnused fails if the buffer is in the inventory, or a job uses it.
func (b *Buffer) checkUnused(what string) error {
	if err := b.checkClaimed(what); err != nil {
		return err
	}
	if b.jobs > 0 {
		return status.Errorf(status.InUse, "%s: %d jobs in flight use the buffer", what, b.jobs)
	}
	return nil
}

// Memory returns the map that the buffer is a range of.
func (b *Buffer) Memory() *MemoryMap { return b.memory }

// Range returns the address of the buffer in the map, and its length in bytes.
func (b *Buffer) Range() (address, length uint64) { return b.head, b.length }

// Data returns the address of the data in the map, and its length in bytes.
func (b *Buffer) Data() (address, length uint64) { return b.data, b.dataLength }

// SetData sets the range that holds data. It fails with status.InvalidValue if the range is outside
// the buffer, and with status.InUse if a job uses the buffer.
func (b *Buffer) SetData(address, length uint64) error {
	if err := b.checkUnused("set data of buffer"); err != nil {
		return err
	}
	if address < b.head || address-b.head > b.length || length > b.length-(address-b.head) {
		return status.Errorf(status.InvalidValue,
			"set data of buffer: %d bytes at %#x are outside its %d bytes at %#x",
			length, address, b.length, b.head)
	}
	b.data, b.dataLength = address, length
	return nil
}

// ResetData discards the data, but keeps its address, at which the next job that copies into the
// buffer starts.
func (b *Buffer) ResetData() error {
	if err := b.checkUnused("reset data of buffer"); err != nil {
		return err
	}
	b.dataLength = 0
	return nil
}

// room returns the number of bytes that fit after the data.
func (b *Buffer) room() uint64 { return b.head + b.length - (b.data + b.dataLength) }

// References returns the number of references to the buffer, or to the list that it heads.
func (b *Buffer) References() int { return b.references }

// AddReference adds a reference and returns the new number. It fails with status.NotPermitted if
// the buffer is in a list but not its head, and with status.TooBig if the buffer has 65535
// references.
func (b *Buffer) AddReference() (int, error) {
	if err := b.checkHead("add reference to buffer"); err != nil {
		return b.references, err
	}
	if b.references == maxReferences {
		return b.references, status.Errorf(status.TooBig,
			"add reference to buffer: it already has %d, the maximum", b.references)
	}
	b.references++
	return b.references, nil
}

// RemoveReference drops a reference and returns the remaining number. Dropping the last one
// releases the buffer, and the whole list that it heads, to its inventory. RemoveReference fails
// with status.BadState if the buffer is released already, with status.NotPermitted if it is in a
// list but not its head, and with status.InUse if a job uses it.
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

// checkHead fails if the buffer is released, or is in a list but not its head.
func (b *Buffer) checkHead(what string) error {
	if err := b.checkClaimed(what); err != nil {
		return err
	}
	if b.references == 0 {
		return status.Errorf(status.NotPermitted,
			"%s: the buffer is in a list, where only the head has references", what)
	}
	return nil
}

// Chain appends the list that next heads to the list that b heads, which takes ownership of the
// only reference to next. A job then copies from all buffers, in order. Chain fails with
// status.InvalidValue unless b and next are the heads of two lists, and with status.InUse if a job
// uses either or next has several references.
func (b *Buffer) Chain(next *Buffer) error {
	const what = "chain buffers"
	for _, head := range []*Buffer{b, next} {
		if err := head.checkUnused(what); err != nil {
			return err
		}
		if head.references == 0 {
			return status.Errorf(status.InvalidValue, "%s: one of them is not the head of a list",
				what)
		}
	}
	if b == next {
		return status.Errorf(status.InvalidValue, "%s: a list cannot follow itself", what)
	}
	if next.references > 1 {
		return status.Errorf(status.InUse, "%s: the second has %d references, not one",
			what, next.references)
	}
	b.last.next = next
	b.last = next.last
	b.elements += next.elements
	next.references, next.last, next.elements = 0, nil, 0
	return nil
}

// Unchain splits the list that b heads before tail, which becomes the head of a second list, with
// one reference. It fails with status.InvalidValue if tail does not follow b in its list.
func (b *Buffer) Unchain(tail *Buffer) error {
	const what = "unchain buffers"
	if err := b.checkUnused(what); err != nil {
		return err
	}
	if b.references == 0 {
		return status.Errorf(status.InvalidValue, "%s: the first is not the head of its list", what)
	}
	before, position := b, 1
	for before.next != nil && before.next != tail {
		before, position = before.next, position+1
	}
	if before.next == nil {
		return status.Errorf(status.InvalidValue, "%s: the second is not in the list of the first",
			what)
	}
	tail.references, tail.last, tail.elements = 1, b.last, b.elements-position
	before.next, b.last, b.elements = nil, before, position
	return nil
}

// Next returns the next buffer of the list, or nil at its end.
func (b *Buffer) Next() *Buffer { return b.next }

// ListLength returns the number of buffers in the list that b heads, or 0 if b is not the head of
// its list.
func (b *Buffer) ListLength() int { return b.elements }
