// SPDX-License-Identifier: Apache-2.0

// Package workqueue holds the queues of posted requests and of completions of the RDMA providers
// that work in software.
package workqueue

import (
	"math/bits"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Queue is a ring of posted requests: a send queue or a receive queue. Its indices only grow,
// wrapping around at 2^32, and are taken modulo the ring's size; Freed ≤ Head ≤ Next ≤ Tail. A
// provider that starts requests when they are posted does not use Next.
type Queue[T any] struct {
	ring   []T
	limit  uint32 // requests that may be outstanding
	Freed  uint32 // slots before it can be reused: their completions have been polled
	Head   uint32 // oldest request that has not completed
	Next   uint32 // next request to transmit
	Tail   uint32 // where the next request is posted
	silent uint32 // requests that have completed silently since the latest completion
}

// NewQueue returns a queue for limit outstanding requests.
func NewQueue[T any](limit int) Queue[T] {
	return Queue[T]{ring: make([]T, ringSize(limit)), limit: uint32(limit)}
}

// ringSize returns the smallest power of two that holds n elements.
func ringSize(n int) int { return 1 << bits.Len(uint(max(n, 1)-1)) }

// At returns the slot with the given index.
func (q *Queue[T]) At(index uint32) *T { return &q.ring[index&uint32(len(q.ring)-1)] }

// Slots returns how many slots the ring has.
func (q *Queue[T]) Slots() int { return len(q.ring) }

// Slot returns the slot that an index means.
func (q *Queue[T]) Slot(index uint32) int { return int(index & uint32(len(q.ring)-1)) }

// Room returns how many requests can be posted.
func (q *Queue[T]) Room() uint32 { return q.limit - (q.Tail - q.Freed) }

// Limit returns how many requests may be outstanding.
func (q *Queue[T]) Limit() int { return int(q.limit) }

// IsOutstanding reports whether the request with an index is posted and has not completed.
func (q *Queue[T]) IsOutstanding(index uint32) bool { return index-q.Head < q.Tail-q.Head }

// CompleteSilently removes the oldest request. Polling the next completion frees its slot.
func (q *Queue[T]) CompleteSilently() {
	q.Head++
	q.silent++
}

// Complete removes the oldest request, and returns its completion for the caller to fill in.
func (q *Queue[T]) Complete(completions *Completions) *rdma.Completion {
	slots := q.silent + 1
	q.Head++
	q.silent = 0
	return completions.push(&q.Freed, slots)
}

// completionEntry is a completion that has not been polled, and the number of slots that polling it
// frees in a queue.
type completionEntry struct {
	completion rdma.Completion
	freed      *uint32 // Queue.Freed
	slots      uint32
}

// initialCompletions is the largest initial size of a ring. Pollers hardly ever leave more
// completions behind. A ring of the queue's full capacity would have to be scanned by every garbage
// collection, which would interrupt the data path.
const initialCompletions = 1024

// Completions is a FIFO of completions. It grows with the requests that its connections have
// outstanding. That also bounds it, because a request's slot stays in use until its completion is
// polled.
type Completions struct {
	entries []completionEntry
	head    uint32
	tail    uint32
}

// NewCompletions returns a FIFO for about capacity completions.
func NewCompletions(capacity int) Completions {
	size := ringSize(min(capacity, initialCompletions))
	return Completions{entries: make([]completionEntry, size)}
}

// Len returns the number of completions.
func (r *Completions) Len() int { return int(r.tail - r.head) }

// push adds a completion, which the caller fills in. Collecting it adds slots to freed, a
// Queue.Freed.
func (r *Completions) push(freed *uint32, slots uint32) *rdma.Completion {
	if r.Len() == len(r.entries) {
		r.grow()
	}
	e := &r.entries[r.tail&uint32(len(r.entries)-1)]
	e.freed, e.slots = freed, slots
	r.tail++
	return &e.completion
}

func (r *Completions) grow() {
	larger := make([]completionEntry, 2*len(r.entries))
	n := 0
	for ; r.head != r.tail; r.head++ {
		larger[n] = r.entries[r.head&uint32(len(r.entries)-1)]
		n++
	}
	r.entries, r.head, r.tail = larger, 0, uint32(n)
}

// Collect moves completions to the caller, frees their slots, and returns their number.
func (r *Completions) Collect(completions []rdma.Completion) int {
	n := min(len(completions), r.Len())
	for i := range n {
		e := &r.entries[r.head&uint32(len(r.entries)-1)]
		completions[i] = e.completion
		*e.freed += e.slots
		e.freed = nil // an old entry must not keep a detached connection alive
		r.head++
	}
	return n
}

// CheckSend checks a request for a send queue, except its memory, for which it returns the rights
// that the request needs.
func CheckSend(r *rdma.SendRequest, maxMessageSize uint32) (memory.Access, error) {
	if r.Local.Length > maxMessageSize || r.RemoteAddress+uint64(r.Local.Length) < r.RemoteAddress {
		return 0, sendError(r, maxMessageSize)
	}
	switch r.Opcode {
	case rdma.OpSend, rdma.OpWrite:
		return 0, nil
	case rdma.OpRead:
		return memory.LocalWrite, nil
	}
	return 0, sendError(r, maxMessageSize)
}

// sendError says what CheckSend has found.
func sendError(r *rdma.SendRequest, maxMessageSize uint32) error {
	switch {
	case r.Opcode != rdma.OpSend && r.Opcode != rdma.OpWrite && r.Opcode != rdma.OpRead:
		return status.Errorf(status.InvalidValue,
			"post request %#x: opcode %q is not valid in a send queue", r.ID, r.Opcode)
	case r.Local.Length > maxMessageSize:
		return status.Errorf(status.TooBig,
			"post %v %#x: message size %d exceeds the maximum of %d",
			r.Opcode, r.ID, r.Local.Length, maxMessageSize)
	}
	return status.Errorf(status.InvalidValue,
		"post %v %#x: %d bytes at remote address %#x wrap around",
		r.Opcode, r.ID, r.Local.Length, r.RemoteAddress)
}

// PostError adds the operation to an error of posting a request.
func PostError(operation string, id uint64, err error) error {
	return status.Errorf(status.CodeOf(err), "post %s %#x: %w", operation, id, err)
}

// Errors of the data path are allocated once, because callers may see them often.
var (
	ErrSendQueueFull    = status.Errorf(status.Full, "send queue is full")
	ErrReceiveQueueFull = status.Errorf(status.Full, "receive queue is full")
	ErrReadDepth        = status.Errorf(status.Again, "outbound read depth is exhausted")
	ErrDetached         = status.Errorf(status.NotConnected,
		"connection has ended and its last completion was polled")
)
