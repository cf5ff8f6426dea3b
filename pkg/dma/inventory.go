package dma

import (
	"fmt"

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
	return v.take(m, address, length, 0)
}

// ByData takes a buffer of length bytes at address that is full of data: a
// source. It fails as ByAddress does.
func (v *Inventory) ByData(m *MemoryMap, address, length uint64) (*Buffer, error) {
	return v.take(m, address, length, length)
}

// Duplicate takes a buffer with the range and data of another, in no list.
func (v *Inventory) Duplicate(b *Buffer) (*Buffer, error) {
	if err := b.alive("duplicate buffer"); err != nil {
		return nil, err
	}
	twin, err := v.take(b.memory, b.head, b.length, b.dataLength)
	if err != nil {
		return nil, err
	}
	twin.data = b.data
	return twin, nil
}

func (v *Inventory) take(m *MemoryMap, address, length, dataLength uint64) (*Buffer, error) {
	if v.phase != started {
		return nil, status.Errorf(status.BadState, "take buffer: the inventory is %s", v.phase)
	}
	if m == nil {
		return nil, status.Errorf(status.InvalidValue, "take buffer: there is no memory map")
	}
	if len(v.free) == 0 {
		return nil, status.Errorf(status.NoMemory, "take buffer: all %d of the inventory are in use", len(v.buffers))
	}
	if err := m.take(address, length); err != nil {
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
func (v *Inventory) put(b *Buffer) {
	b.memory.give()
	*b = Buffer{inventory: v}
	v.free = append(v.free, b)
}
