//go:build verbs

package verbs

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

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
