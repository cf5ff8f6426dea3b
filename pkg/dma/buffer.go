package dma

import (
	"math"

	"github.com/zc-relay/zc-relay/pkg/status"
)

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
func (b *Buffer) alive(what string) error {
	if b == nil {
		return status.Errorf(status.InvalidValue, "%s: there is none", what)
	}
	if b.memory == nil {
		return status.Errorf(status.BadState, "%s: its last reference was dropped", what)
	}
	return nil
}

// changeable fails if the buffer is in the inventory, or a job uses it.
func (b *Buffer) changeable(what string) error {
	if err := b.alive(what); err != nil {
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
	if err := b.changeable("set data of buffer"); err != nil {
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
	if err := b.changeable("reset data of buffer"); err != nil {
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
	if err := b.counted("add reference to buffer"); err != nil {
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
	if err := b.counted(what); err != nil {
		return 0, err
	}
	if b.references > 1 {
		b.references--
		return b.references, nil
	}
	if err := b.changeable(what); err != nil {
		return b.references, err
	}
	for e := b; e != nil; {
		next := e.next
		e.inventory.put(e)
		e = next
	}
	return 0, nil
}

// counted fails if references to the buffer are not counted.
func (b *Buffer) counted(what string) error {
	if err := b.alive(what); err != nil {
		return err
	}
	if b.references == 0 {
		return status.Errorf(status.NotPermitted, "%s: it is in a list, of which only the head has references", what)
	}
	return nil
}
