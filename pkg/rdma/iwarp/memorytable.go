package iwarp

import (
	"crypto/rand"
	"encoding/binary"
	"sync"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/status"
)

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
