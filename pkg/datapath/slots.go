// SPDX-License-Identifier: Apache-2.0

package datapath

import "github.com/zc-relay/zc-relay/pkg/iomsg"

// slotTable is the fixed table of a relay lane's transactions.
type slotTable struct {
	slots []slot
	free  []uint32 // a stack: the slot used last is still in the cache
}

// slot holds a client's request until it completes.
type slot struct {
	request    message
	operation  iomsg.Operation
	ioSize     uint32
	generation uint32
	inFlight   bool
	copying    bool // its data is on the way between the client and the bounce buffer
	declined   bool // the target has not carried it out: see keepDeclined
	startNs    int64
	next       next
}

func newSlotTable(depth int) slotTable {
	t := slotTable{slots: make([]slot, depth), free: make([]uint32, depth)}
	for i := range t.free {
		t.free[i] = uint32(depth - 1 - i)
	}
	return t
}

// room returns the number of free slots.
func (t *slotTable) room() int { return len(t.free) }

// inFlight returns the number of claimed slots.
func (t *slotTable) inFlight() int { return len(t.slots) - len(t.free) }

// claim puts a request into a free slot. The second result is false if there is none.
func (t *slotTable) claim(
	request *message, operation iomsg.Operation, size uint32, nowNs int64,
) (uint32, bool) {
	n := len(t.free)
	if n == 0 {
		return 0, false
	}
	index := t.free[n-1]
	t.free = t.free[:n-1]
	s := &t.slots[index]
	s.request = *request
	s.operation, s.ioSize = operation, size
	s.generation++
	s.inFlight, s.declined = true, false
	s.startNs = nowNs
	return index, true
}

// find returns the slot that a response's tag names, or nil if the target holds no transaction with
// that tag.
func (t *slotTable) find(index, generation uint32) *slot {
	if index >= uint32(len(t.slots)) {
		return nil
	}
	s := &t.slots[index]
	if !s.inFlight || s.generation != generation || s.copying {
		return nil
	}
	return s
}

// release frees a slot.
func (t *slotTable) release(index uint32) {
	t.slots[index].inFlight = false
	t.free = append(t.free, index)
}

// oldest returns the transaction in flight that began first, or nil if there is none.
func (t *slotTable) oldest() *slot {
	var oldest *slot
	for i := range t.slots {
		s := &t.slots[i]
		if s.inFlight && (oldest == nil || s.startNs < oldest.startNs) {
			oldest = s
		}
	}
	return oldest
}
