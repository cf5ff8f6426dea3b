package datapath

import (
	"github.com/zc-relay/zc-relay/pkg/iomsg"
)

// relaySlot is a transaction of a relay lane: the client's request until it
// has been answered.
type relaySlot struct {
	request    message
	ioType     iomsg.Type
	ioSize     uint32
	generation uint32
	inFlight   bool
	startNs    int64
}

// relaySlots is the fixed set of transactions of a lane.
type relaySlots struct {
	slots []relaySlot
	free  []uint32 // a stack: the slot used last is warm in the cache
}

func newRelaySlots(depth int) relaySlots {
	s := relaySlots{slots: make([]relaySlot, depth), free: make([]uint32, depth)}
	for i := range s.free {
		s.free[i] = uint32(depth - 1 - i)
	}
	return s
}

// room is how many requests can be claimed a slot for.
func (s *relaySlots) room() int { return len(s.free) }

func (s *relaySlots) inFlight() int { return len(s.slots) - len(s.free) }

// claim takes a free slot for a request; ok is false if there is none.
func (s *relaySlots) claim(request *message, m *iomsg.Message, nowNs int64) (index uint32, ok bool) {
	n := len(s.free)
	if n == 0 {
		return 0, false
	}
	index = s.free[n-1]
	s.free = s.free[:n-1]
	slot := &s.slots[index]
	slot.request = *request
	slot.ioType, slot.ioSize = m.Type, m.IOSize
	slot.generation++
	slot.inFlight = true
	slot.startNs = nowNs
	return index, true
}

// find returns the slot that an answer's tag names, nil if the tag is not one
// of a transaction in flight.
func (s *relaySlots) find(index, generation uint32) *relaySlot {
	if index >= uint32(len(s.slots)) {
		return nil
	}
	slot := &s.slots[index]
	if !slot.inFlight || slot.generation != generation {
		return nil
	}
	return slot
}

func (s *relaySlots) release(index uint32) {
	s.slots[index].inFlight = false
	s.free = append(s.free, index)
}

// oldestNs is when the oldest transaction in flight began; ok is false if
// there is none.
func (s *relaySlots) oldestNs() (ns int64, ok bool) {
	for i := range s.slots {
		slot := &s.slots[i]
		if slot.inFlight && (!ok || slot.startNs < ns) {
			ns, ok = slot.startNs, true
		}
	}
	return ns, ok
}
