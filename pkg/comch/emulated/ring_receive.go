// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// receiveRing is the consumer's side of a ring. It belongs to the consumer's thread, except
// highestProducer.
//
// Indices count receives from the start and never wrap; masked, they are positions in the ring.
// completed <= published <= posted <= completed + receives.
type receiveRing struct {
	shared    sharedRing
	mask      uint64
	receives  uint64
	immediate uint32 // the most bytes of immediate data in a message
	posted    uint64 // by post
	published uint64 // visible to producers
	completed uint64 // returned by poll
	// copies holds the posted receives by position. The peer can change the entries in shared
	// memory.
	copies []postedReceive
	// highestProducer is the highest id of all producers that the peer has opened to this consumer,
	// including those it has closed: their last messages may still be in the ring.
	highestProducer *atomic.Uint32
}

type postedReceive struct {
	userData uint64
	offset   uint32
	length   uint32
}

func newReceiveRing(shared sharedRing, layout ringLayout, highestProducer *atomic.Uint32,
) receiveRing {
	capacity := len(shared.completions)
	return receiveRing{
		shared:          shared,
		mask:            uint64(capacity - 1),
		receives:        uint64(layout.receives),
		immediate:       uint32(layout.immediate),
		copies:          make([]postedReceive, capacity),
		highestProducer: highestProducer,
	}
}

// post offers a buffer. Producers see it after the next publish.
func (r *receiveRing) post(offset, length uint32, userData uint64) error {
	if r.posted-r.completed >= r.receives {
		return status.Full
	}
	size := uint64(len(r.shared.memory))
	if uint64(offset)+uint64(length) > size {
		return status.Errorf(status.InvalidValue,
			"post receive: %d bytes at offset %d are outside the consumer's memory of %d bytes",
			length, offset, size)
	}
	position := r.posted & r.mask
	r.copies[position] = postedReceive{userData: userData, offset: offset, length: length}
	// A plain store: publish orders it before the index that covers it.
	r.shared.posted[position] = uint64(offset)<<32 | uint64(length)
	r.posted++
	return nil
}

// publish makes posted receives visible and reports whether a producer waits for them.
func (r *receiveRing) publish() bool {
	if r.published == r.posted {
		return false
	}
	r.shared.header.posted.Store(r.posted)
	r.published = r.posted
	return r.shared.header.producersWaiting.Load() != 0
}

// poll collects completed receives. It returns those before an invalid one together with the error.
func (r *receiveRing) poll(received []comch.Received) (int, error) {
	n := 0
	for n < len(received) && r.completed != r.published {
		position := r.completed & r.mask
		slot := &r.shared.completions[position]
		published := slot.published.Load()
		if uint32(published>>32) != uint32(r.completed+1) {
			return n, r.checkUnpublished(published)
		}
		posted, length := &r.copies[position], uint32(published)
		origin := atomic.LoadUint64(&slot.origin)
		producer, immediateLength := uint32(origin>>32), uint32(origin)
		if length > posted.length || immediateLength > r.immediate ||
			producer == 0 || producer > r.highestProducer.Load() {
			return n, r.completionViolation(length, producer, immediateLength)
		}
		next := &received[n]
		next.UserData = posted.userData
		next.Offset = posted.offset
		next.Length = length
		next.Producer = producer
		next.ImmediateLength = immediateLength
		if immediateLength > 0 {
			copy(next.Immediate[:immediateLength], slot.immediate[:immediateLength])
		}
		r.completed++
		n++
	}
	return n, nil
}

// watch returns the word that the next message changes, unless poll would find something.
func (r *receiveRing) watch() progress.Watch {
	if r.completed == r.published {
		return progress.Watch{}
	}
	word := &r.shared.completions[r.completed&r.mask].published
	idle := word.Load()
	if uint32(idle>>32) != r.previousSequence() {
		return progress.Watch{}
	}
	return progress.Watch{Word: word, Idle: idle}
}

// checkUnpublished returns nil if a slot is unchanged since its previous use, and a violation
// otherwise.
func (r *receiveRing) checkUnpublished(published uint64) error {
	sequence := uint32(published >> 32)
	if sequence == r.previousSequence() {
		return nil
	}
	return violation("completion slot %d has sequence %d, expected %d or %d",
		r.completed&r.mask, sequence, r.previousSequence(), uint32(r.completed+1))
}

// previousSequence returns the sequence that the next slot keeps from its previous use until it
// completes.
func (r *receiveRing) previousSequence() uint32 {
	if r.completed <= r.mask {
		return 0
	}
	return uint32(r.completed - r.mask)
}

func (r *receiveRing) completionViolation(length, producer, immediateLength uint32) error {
	position := r.completed & r.mask
	switch posted := r.copies[position].length; {
	case length > posted:
		return violation("completion slot %d has length %d, the posted buffer has %d bytes",
			position, length, posted)
	case immediateLength > r.immediate:
		return violation("completion slot %d has %d bytes of immediate data, the limit is %d",
			position, immediateLength, r.immediate)
	default:
		return violation("completion slot %d names producer %d, which the peer has not opened",
			position, producer)
	}
}

// ready reports whether poll would find something.
func (r *receiveRing) ready() bool {
	return r.completed != r.published && r.watch().Word == nil
}

// revoke takes the posted receives back from producers: see sendRing.isRevoked. It does nothing to
// a ring without memory.
func (r *receiveRing) revoke() {
	if r.shared.header != nil {
		r.shared.header.posted.Store(0)
	}
}
