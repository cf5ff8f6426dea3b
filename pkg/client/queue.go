package client

import (
	"errors"
	"fmt"
	"time"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// pollBatch is how many answers a queue takes from the relay at a time.
const pollBatch = 32

// spareReceives is the room, beyond the depth, for the answer to stop.
const spareReceives = 4

// Request is one operation of a Queue.
type Request struct {
	// Type is iomsg.Read, Write, Flush, Trim or WriteZeroes.
	Type iomsg.Type
	// Flags may be iomsg.FUA.
	Flags iomsg.Flags
	// Length is the number of bytes, a multiple of the block size; at most
	// Info.BufferSize if data is moved.
	Length uint32
	// Offset is where in the volume, a multiple of the block size.
	Offset uint64
	// Memory is where the data lies in Volume.Memory.
	Memory uint64
	// Tag comes back in the result.
	Tag uint64
}

// Result is the outcome of a Request.
type Result struct {
	Tag  uint64
	Code status.Code
}

// Queue submits requests and polls for their results. Requests are carried
// out in any order. A queue is used by one thread at a time; nothing in
// Submit, Flush and Poll allocates, blocks or locks.
type Queue struct {
	volume   *Volume
	consumer comch.Consumer
	producer comch.Producer
	slots    []slot
	free     []uint32
	received [pollBatch]comch.Received
	// encoded is a field because what goes through an interface would
	// otherwise be allocated for each request.
	encoded [iomsg.Size]byte

	ended     bool // the connection is gone; what is outstanding has been failed
	failed    []uint32
	stopSent  bool
	stopped   bool
	unflushed bool
	checkedAt int64 // when deadlines were last looked at, by Volume.clock
}

// slot is an outstanding request.
type slot struct {
	tag         uint64
	generation  uint32
	outstanding bool
	since       int64 // by Volume.clock
}

func newQueue(volume *Volume, consumer comch.Consumer, depth int) (*Queue, error) {
	q := &Queue{
		volume: volume, consumer: consumer,
		slots: make([]slot, depth), free: make([]uint32, depth), failed: make([]uint32, 0, depth),
	}
	for i := range q.free {
		q.free[i] = uint32(depth - 1 - i)
	}
	for i := range uint64(depth + spareReceives) {
		if err := consumer.PostReceive(uint32(i)*iomsg.Size, iomsg.Size, i); err != nil {
			return nil, fmt.Errorf("post receive %d on the Comch consumer: %w", i, err)
		}
	}
	consumer.Flush()
	return q, nil
}

// Outstanding is how many requests have been submitted and have no result
// yet.
func (q *Queue) Outstanding() int { return len(q.slots) - len(q.free) }

// Submit sends a request on its way; Flush makes sure that a sleeping relay
// notices. status.Again means that the queue's depth is exhausted: poll first.
// After the end of the connection it fails with Volume.Err.
func (q *Queue) Submit(r *Request) error {
	if q.ended || q.stopSent {
		return q.volume.endError()
	}
	n := len(q.free)
	if n == 0 {
		return status.Again
	}
	index := q.free[n-1]
	s := &q.slots[index]
	iomsg.Encode(q.encoded[:], &iomsg.Message{
		Type: r.Type, UserData: uint64(s.generation+1)<<32 | uint64(index), IOSize: r.Length,
		RequesterOffset: r.Memory, StorageOffset: r.Offset, Flags: r.Flags,
	})
	if err := q.producer.Send(q.encoded[:], nil); err != nil {
		if errors.Is(err, status.Again) {
			return status.Again
		}
		return q.volume.endError()
	}
	q.unflushed = true
	q.free = q.free[:n-1]
	s.generation++
	s.tag, s.outstanding, s.since = r.Tag, true, q.volume.clock.Load()
	return nil
}

// Flush wakes a sleeping relay for what has been submitted. It is called once
// after a batch of Submit.
func (q *Queue) Flush() {
	if q.unflushed {
		q.unflushed = false
		q.producer.Flush()
	}
}

// Poll fills results with outcomes and returns their number. When the
// connection has ended, everything outstanding fails with the code of
// Volume.Err.
func (q *Queue) Poll(results []Result) int {
	if q.ended {
		return q.pollFailed(results)
	}
	limit := min(len(results), pollBatch)
	n := q.consumer.Poll(q.received[:limit])
	if n == 0 {
		return q.pollNothing(results)
	}
	count := 0
	for i := range q.received[:n] {
		if q.take(&q.received[i], &results[count]) {
			count++
		}
	}
	q.consumer.Flush()
	return count
}

// pollNothing looks for the reasons why nothing may ever come.
func (q *Queue) pollNothing(results []Result) int {
	if q.consumer.State() != progress.Running {
		q.end()
		return q.pollFailed(results)
	}
	if now := q.volume.clock.Load(); now != q.checkedAt {
		q.checkedAt = now
		q.checkDeadline(now)
	}
	return 0
}

// take turns one received message into a result; ok is false if it is none.
func (q *Queue) take(r *comch.Received, result *Result) (ok bool) {
	var buf [iomsg.Size]byte
	if r.Length != iomsg.Size {
		q.volume.violation(status.Errorf(status.InvalidValue, "relay sent a message of %d bytes instead of %d", r.Length, iomsg.Size))
		return false
	}
	// Copied once: the relay can change the buffer at any time.
	copy(buf[:], q.consumer.Memory()[r.Offset:][:iomsg.Size])
	if err := q.consumer.PostReceive(r.Offset, iomsg.Size, r.UserData); err != nil {
		q.volume.violation(fmt.Errorf("post receive: %w", err))
		return false
	}
	var m iomsg.Message
	iomsg.Decode(buf[:], &m)
	if m.Type == iomsg.Stop && q.stopSent && !q.stopped {
		q.stopped = true
		return false
	}
	index, generation := uint32(m.UserData), uint32(m.UserData>>32)
	if m.Type != iomsg.Result || index >= uint32(len(q.slots)) ||
		!q.slots[index].outstanding || q.slots[index].generation != generation {
		q.volume.violation(status.Errorf(status.Unexpected, "relay sent type %d for transaction %#x, which is not outstanding", uint32(m.Type), m.UserData))
		return false
	}
	*result = Result{Tag: q.slots[index].tag, Code: m.Result}
	q.release(index)
	return true
}

func (q *Queue) release(index uint32) {
	q.slots[index].outstanding = false
	q.free = append(q.free, index)
}

// end fails everything outstanding.
func (q *Queue) end() {
	q.ended = true
	for i := range q.slots {
		if q.slots[i].outstanding {
			q.failed = append(q.failed, uint32(i))
		}
	}
}

func (q *Queue) pollFailed(results []Result) int {
	n := min(len(results), len(q.failed))
	if n == 0 {
		return 0
	}
	code := status.CodeOf(q.volume.endError())
	for i := range n {
		index := q.failed[len(q.failed)-1-i]
		results[i] = Result{Tag: q.slots[index].tag, Code: code}
		q.release(index)
	}
	q.failed = q.failed[:len(q.failed)-n]
	return n
}

func (q *Queue) checkDeadline(now int64) {
	limit := q.volume.config.IOTimeout
	if limit < 0 {
		return
	}
	for i := range q.slots {
		if s := &q.slots[i]; s.outstanding && time.Duration(now-s.since) > limit {
			q.volume.violation(status.Errorf(status.TimeOut, "relay did not answer an IO within %v", limit))
			return
		}
	}
}
