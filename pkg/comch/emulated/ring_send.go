// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// sendRing is the producers' side of a ring. All producers of one consumer live in one process and
// share it. They use it to agree on who uses which slot; the peer sees only completed slots.
type sendRing struct {
	shared    sharedRing
	capacity  uint64
	immediate int // the most bytes of immediate data in a message
	_         [cacheLine]byte
	// next is the index of the next message.
	next atomic.Uint64
	// seenPosted is the count of posted receives that a producer last read. Producers read the
	// consumer's cache line again only after using up these receives. A slow producer may set
	// seenPosted back, which costs one more read.
	seenPosted atomic.Uint64
	_          [cacheLine - 16]byte
}

func newSendRing(shared sharedRing, immediate int) *sendRing {
	return &sendRing{shared: shared, capacity: uint64(len(shared.completions)),
		immediate: immediate}
}

// send copies a message into the next posted buffer and publishes it. It returns status.Again if no
// receive is posted, and status.NotConnected if the consumer is gone.
func (s *sendRing) send(producer uint32, message, immediate []byte) error {
	if len(immediate) > s.immediate {
		return status.Errorf(status.InvalidValue,
			"send: %d bytes of immediate data exceed the consumer's limit of %d",
			len(immediate), s.immediate)
	}
	for {
		index := s.next.Load()
		position := index & (s.capacity - 1)
		// Signed, because seenPosted may lag behind.
		if int64(s.seenPosted.Load()-index) <= 0 {
			if err := s.refreshPosted(index); err != nil {
				return err
			}
			continue
		}
		// If other producers were faster, this entry may belong to another index. Then claiming the
		// index fails.
		posted := atomic.LoadUint64(&s.shared.posted[position])
		offset, length := posted>>32, posted&0xffffffff
		if offset+length > uint64(len(s.shared.memory)) {
			return violation("posted entry %d has %d bytes at offset %d, the memory has %d",
				position, length, offset, len(s.shared.memory))
		}
		if uint64(len(message)) > length {
			if s.next.Load() != index {
				continue
			}
			if s.isRevoked(index) {
				return status.NotConnected
			}
			return status.Errorf(status.InvalidValue,
				"send: message of %d bytes exceeds the posted buffer of %d", len(message), length)
		}
		if !s.next.CompareAndSwap(index, index+1) {
			continue
		}
		// Write the completion's line before the message, so that the core can fetch both at the
		// same time.
		slot := &s.shared.completions[position]
		slot.origin = uint64(producer)<<32 | uint64(len(immediate))
		copy(slot.immediate[:], immediate)
		copy(s.shared.memory[offset:], message)
		slot.published.Store((index+1)<<32 | uint64(len(message)))
		return nil
	}
}

// refreshPosted updates seenPosted. It returns status.Again if there is no receive for index.
func (s *sendRing) refreshPosted(index uint64) error {
	posted := s.shared.header.posted.Load()
	if s.next.Load() != index {
		return nil // posted belongs to a later index: start over
	}
	if posted == index {
		return status.Again
	}
	if s.isRevoked(index) {
		return status.NotConnected
	}
	if posted-index > s.capacity {
		return violation("posted count is %d after %d messages, the ring holds %d",
			posted, index, s.capacity)
	}
	s.seenPosted.Store(posted)
	return nil
}

// isRevoked reports whether the consumer is gone. The peer then resets the count of posted receives
// to 0, and the pages of the ring may read as zeroes.
func (s *sendRing) isRevoked(index uint64) bool {
	used := index > 0 || s.seenPosted.Load() > 0
	return used && s.shared.header.posted.Load() == 0
}

// ready reports whether a receive seems to be posted.
func (s *sendRing) ready() bool { return s.shared.header.posted.Load() != s.next.Load() }
