// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"math"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// A message to the relay moves one run of memory, so a request with segments is a message for each
// of them. Each has a slot, all of which are taken when the request is submitted. The slot of the
// first segment, the head, is that of the request: it is free again when all have completed.
//
// The relay may have no room for all of the messages at once. Then the others are sent when it has,
// before any later request.

// segmentState is what a slot knows of a request with segments.
type segmentState struct {
	head   uint32 // slot of the first segment
	number uint32 // of the slot's segment, from 0

	// In the head:
	pending uint32 // segments that have not completed
	length  uint32 // of all
	failed  uint32 // the first segment that has failed so far
	result  Result // of the request so far
}

// unsentMessage is a message that the producer has had no room for.
type unsentMessage [iomsg.Size]byte

// checkSegments checks a request with segments like one without.
func (t *terms) checkSegments(r *Request, memoryEnd uint64) error {
	if r.Type != Read && r.Type != Write {
		return status.Errorf(status.InvalidValue,
			"%v with segments: only reads and writes have them", r.Type)
	}
	if len(r.Segments) > t.info.Depth {
		return status.Errorf(status.TooBig, "%v with %d segments, of which the queue has room "+
			"for %d", r.Type, len(r.Segments), t.info.Depth)
	}
	part := Request{Type: r.Type, Offset: r.Offset}
	sum := uint64(0)
	for i := range r.Segments {
		part.Memory, part.Length = r.Segments[i].Memory, r.Segments[i].Length
		if sum += uint64(part.Length); sum > uint64(r.Length) {
			break
		}
		if err := t.check(&part, memoryEnd); err != nil {
			return err
		}
		part.Offset += uint64(part.Length)
	}
	if sum != uint64(r.Length) {
		return status.Errorf(status.InvalidValue,
			"%v of %d bytes: the sum of its segments is another one", r.Type, r.Length)
	}
	return nil
}

// submitSegments is Submit for a request with segments, which has been checked.
func (q *Queue) submitSegments(r *Request) error {
	n := len(q.free)
	if n < len(r.Segments) || len(q.unsent) > 0 {
		return status.Again
	}
	head, offset := q.free[n-1], r.Offset
	for _, part := range r.Segments {
		if !q.canCarry(r, part, offset) {
			return errNotCarried
		}
		offset += uint64(part.Length)
	}
	offset = r.Offset
	for i, part := range r.Segments {
		index := q.free[n-1-i]
		traceID := q.encode(index, r, part, offset)
		var err error
		if len(q.unsent) == 0 {
			err = q.pair.producer.Send(q.encoded[:], nil)
		}
		switch {
		case err != nil && i == 0:
			return q.sendError(err)
		case errors.Is(err, status.Again):
			q.keepUnsent()
			q.wake() // for Poll to wait for room
		case len(q.unsent) > 0:
			q.keepUnsent()
		}
		// Any other error means that the session has ended: then Poll reports the request as lost.
		q.begin(index, r, part, offset, traceID)
		s := &q.slots[index]
		s.isSegment = true
		s.segment = segmentState{head: head, number: uint32(i)}
		offset += uint64(part.Length)
	}
	state := &q.slots[head].segment
	state.pending, state.length = uint32(len(r.Segments)), r.Length
	state.failed, state.result = math.MaxUint32, Result{Tag: r.Tag, Code: status.Success}
	q.free = q.free[:n-len(r.Segments)]
	q.extra += len(r.Segments) - 1
	q.unrung = true
	q.counted.Submitted++
	return nil
}

// keepUnsent keeps the encoded message for sendUnsent.
func (q *Queue) keepUnsent() {
	if q.unsent == nil {
		q.unsent = make([]unsentMessage, 0, len(q.slots))
	}
	q.unsent = append(q.unsent, q.encoded)
}

// sendUnsent sends the messages that the producer has room for by now.
func (q *Queue) sendUnsent() {
	sent := 0
	for sent < len(q.unsent) && q.pair.producer.Send(q.unsent[sent][:], nil) == nil {
		sent++
	}
	if sent > 0 {
		q.unsent = q.unsent[:copy(q.unsent, q.unsent[sent:])]
		q.pair.producer.Flush()
	}
	engine := q.engine.Load()
	switch {
	case engine == nil:
	case len(q.unsent) > 0:
		q.pair.awaitRoom(engine)
	default:
		q.pair.hasRoom(engine)
		engine.Wake() // the thread may have called Submit in vain, and sleep next
	}
}

// completeSegment is called with the outcome of a segment. If it is the last one, completeSegment
// completes the request, makes result that of the request, and returns true.
func (q *Queue) completeSegment(index uint32, result *Result) bool {
	s := &q.slots[index]
	s.outstanding = false
	head := &q.slots[s.segment.head]
	state := &head.segment
	isQuarantined := state.result.Quarantined || result.Quarantined
	if result.Code != status.Success && s.segment.number < state.failed {
		state.failed, state.result = s.segment.number, *result
	}
	state.result.Quarantined = isQuarantined
	if s != head {
		s.isSegment = false
		q.free = append(q.free, index)
		q.extra--
	}
	if state.pending--; state.pending > 0 {
		return false
	}
	*result = state.result
	head.isSegment = false
	q.complete(s.segment.head, result.Code, uint64(state.length))
	return true
}
