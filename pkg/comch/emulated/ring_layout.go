package emulated

import (
	"math/bits"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// cacheLine is the unit in bytes by which cores hand memory to each other, on
// amd64 and on the Arm cores of a BlueField. Whatever different sides write
// lies in different lines.
const cacheLine = 64

// Sizes in bytes of what a ring is made of. ring_unsafe.go has the structures.
const (
	ringHeaderSize  = 4 * cacheLine
	completionSize  = cacheLine
	postedEntrySize = 8
)

// ringLayout says where the parts of a ring lie in its shared memory: the
// header, one completion slot and one posted entry for each receive, and the
// message memory. Both sides compute it from the same two numbers.
type ringLayout struct {
	receives    int // that the consumer may have posted at a time
	immediate   int // most bytes of immediate data in a message
	capacity    int // slots: receives rounded up to a power of two
	completions int // offset in bytes, as the following
	posted      int
	memory      int
	memorySize  int
	total       int // bytes of shared memory
}

// planRing lays out the ring of a consumer and refuses sizes beyond limits.
func planRing(config comch.ConsumerConfig, limits Limits) (ringLayout, error) {
	if config.Receives < 1 || config.Receives > limits.MaxReceives {
		return ringLayout{}, status.Errorf(status.InvalidValue,
			"%d receives are not within 1 and %d", config.Receives, limits.MaxReceives)
	}
	if config.MemorySize < 1 || config.MemorySize > limits.MaxMemorySize {
		return ringLayout{}, status.Errorf(status.InvalidValue,
			"%d bytes of message memory are not within 1 and %d", config.MemorySize, limits.MaxMemorySize)
	}
	if config.ImmediateLength < 0 || config.ImmediateLength > comch.MaxImmediateLength {
		return ringLayout{}, status.Errorf(status.InvalidValue,
			"%d bytes of immediate data are not within 1 and %d", config.ImmediateLength, comch.MaxImmediateLength)
	}
	setDefault(&config.ImmediateLength, comch.MaxImmediateLength)
	capacity := 1 << bits.Len(uint(config.Receives-1))
	l := ringLayout{receives: config.Receives, immediate: config.ImmediateLength, capacity: capacity, memorySize: config.MemorySize}
	l.completions = ringHeaderSize
	l.posted = l.completions + capacity*completionSize
	l.memory = roundUp(l.posted+capacity*postedEntrySize, cacheLine)
	l.total = roundUp(l.memory+config.MemorySize, cacheLine)
	return l, nil
}

// roundUp rounds to the next multiple of unit, a power of two.
func roundUp(n, unit int) int { return (n + unit - 1) &^ (unit - 1) }
