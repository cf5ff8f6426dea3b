// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// cacheLine is the unit in bytes in which cores exchange memory, on amd64 and on the Arm cores of a
// BlueField. Data that different sides write lies in different lines.
const cacheLine = 64

// Sizes of the parts of a ring, in bytes.
const (
	ringHeaderSize  = 4 * cacheLine
	completionSize  = cacheLine
	postedEntrySize = 8
)

// ringLayout locates the parts of a ring in its shared memory: the header, one completion slot and
// one posted entry per receive, and the message memory. Both sides compute it from the same
// comch.ConsumerConfig.
type ringLayout struct {
	receives    int // the most that the consumer may have posted
	immediate   int // the most bytes of immediate data in a message
	capacity    int // slots: receives rounded up to a power of two
	completions int // offset in bytes, like posted and memory
	posted      int
	memory      int
	memorySize  int
	total       int // bytes of shared memory
}

// planRing lays out the ring of a consumer. It rejects sizes beyond limits.
func planRing(config comch.ConsumerConfig, limits Limits) (ringLayout, error) {
	if config.Receives < 1 || config.Receives > limits.MaxReceives {
		return ringLayout{}, status.Errorf(status.InvalidValue,
			"%d receives are not between 1 and %d", config.Receives, limits.MaxReceives)
	}
	if config.MemorySize < 1 || config.MemorySize > limits.MaxMemorySize {
		return ringLayout{}, status.Errorf(status.InvalidValue,
			"%d bytes of message memory are not between 1 and %d",
			config.MemorySize, limits.MaxMemorySize)
	}
	if config.ImmediateLength < 0 || config.ImmediateLength > comch.MaxImmediateLength {
		return ringLayout{}, status.Errorf(status.InvalidValue,
			"%d bytes of immediate data are not between 0 and %d",
			config.ImmediateLength, comch.MaxImmediateLength)
	}
	setDefault(&config.ImmediateLength, comch.MaxImmediateLength)
	capacity := 1 << bits.Len(uint(config.Receives-1))
	l := ringLayout{receives: config.Receives, immediate: config.ImmediateLength,
		capacity: capacity, memorySize: config.MemorySize}
	l.completions = ringHeaderSize
	l.posted = l.completions + capacity*completionSize
	l.memory = roundUp(l.posted+capacity*postedEntrySize, cacheLine)
	l.total = roundUp(l.memory+config.MemorySize, cacheLine)
	return l, nil
}

// roundUp rounds n up to a multiple of unit, a power of two.
func roundUp(n, unit int) int { return (n + unit - 1) &^ (unit - 1) }

// ringHeader is the shared state of a ring. The consumer writes the first pair of cache lines, the
// producers the second. They write pairs because some processors prefetch lines in pairs.
type ringHeader struct {
	// posted counts the receives that the consumer has made visible.
	posted atomic.Uint64
	_      [cacheLine - 8]byte
	// consumerSleeping is not 0 while the consumer waits for its doorbell.
	consumerSleeping atomic.Uint32
	_                [cacheLine - 4]byte
	// producersWaiting is not 0 while a producer waits for its doorbell.
	producersWaiting atomic.Uint32
	_                [2*cacheLine - 4]byte
}

// completion describes one message to the consumer. It fills one cache line, so that polling reads
// only one, and it carries its own sequence, so that producers share no tail.
type completion struct {
	// published holds the low half of the message's index plus one in its upper half, and the
	// message's length in its lower half. Storing it makes the rest of the message visible.
	published atomic.Uint64
	// origin holds the producer's id in its upper half and the length of the immediate data in its
	// lower half. It is written before published.
	origin    uint64
	immediate [comch.MaxImmediateLength]byte
	_         [cacheLine - 16 - comch.MaxImmediateLength]byte
}

// The format in shared memory must not depend on how a compiler lays out structures.
var (
	_ [ringHeaderSize - unsafe.Sizeof(ringHeader{})]byte
	_ [unsafe.Sizeof(ringHeader{}) - ringHeaderSize]byte
	_ [completionSize - unsafe.Sizeof(completion{})]byte
	_ [unsafe.Sizeof(completion{}) - completionSize]byte
)

// sharedRing is one side's view of a ring's shared memory. The peer can write all of it at any
// time. Entry i of posted belongs to completion slot i.
type sharedRing struct {
	header      *ringHeader
	completions []completion
	// posted holds the offset of a posted buffer in the upper half of an entry and its length in
	// the lower half.
	posted []uint64
	memory []byte
}

// viewRing maps the parts of a ring onto at least layout.total bytes. Mappings start at a page, so
// every part is aligned.
func viewRing(mapped []byte, layout ringLayout) sharedRing {
	mapped = mapped[:layout.total]
	end := layout.memory + layout.memorySize
	return sharedRing{
		header: (*ringHeader)(unsafe.Pointer(&mapped[0])),
		completions: unsafe.Slice((*completion)(unsafe.Pointer(&mapped[layout.completions])),
			layout.capacity),
		posted: unsafe.Slice((*uint64)(unsafe.Pointer(&mapped[layout.posted])),
			layout.capacity),
		memory: mapped[layout.memory:end:end],
	}
}
