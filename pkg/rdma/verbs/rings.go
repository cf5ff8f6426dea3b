//go:build cgo

package verbs

import (
	"math/bits"

	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// ring holds the requests posted to one queue of a connection. Indices only grow, wrapping around
// at 2^32, and their low bits select the entry; head ≤ tail.
type ring[E any] struct {
	entries []E
	limit   uint32 // requests that may be outstanding
	head    uint32 // the oldest request that has not completed
	tail    uint32 // the next request to be posted
}

func newRing[E any](limit int) ring[E] {
	return ring[E]{entries: make([]E, ringSize(limit)), limit: uint32(limit)}
}

// ringSize returns the smallest power of two that is at least n.
func ringSize(n int) int { return 1 << bits.Len(uint(max(n, 1)-1)) }

func (r *ring[E]) at(index uint32) *E { return &r.entries[index&uint32(len(r.entries)-1)] }

func (r *ring[E]) room() uint32 { return r.limit - (r.tail - r.head) }

// hasOutstanding reports whether the request at index has been posted and has not completed.
func (r *ring[E]) hasOutstanding(index uint32) bool { return index-r.head < r.tail-r.head }

// sendEntry is a posted Send, Write, or Read.
type sendEntry struct {
	id     uint64
	opcode rdma.Opcode
	silent bool
	done   bool // the device has reported the outcome
	status rdma.CompletionStatus
}

// sendRing mirrors the device's send queue.
type sendRing struct {
	ring[sendEntry]
	// reported is the index after the latest request whose outcome the device has reported, with
	// head ≤ reported ≤ tail. Silent requests before it have succeeded, except Reads.
	reported uint32
}

// report records the outcome of a request. Devices report in posting order, except siw, which
// reports requests that follow a Read before the Read.
func (r *sendRing) report(index uint32, outcome rdma.CompletionStatus) {
	e := r.at(index)
	e.done, e.status = true, outcome
	if index+1-r.head > r.reported-r.head {
		r.reported = index + 1
	}
}

// next removes and returns the oldest request if its outcome is known, else nil. The entry is valid
// until the next request is posted.
func (r *sendRing) next() *sendEntry {
	if r.head == r.tail || !r.hasOutcome(r.at(r.head)) {
		return nil
	}
	return r.advance()
}

// nextFlushed removes and returns the oldest request, or nil if the ring is empty. If the outcome
// is unknown, it becomes StatusFlushed.
func (r *sendRing) nextFlushed() *sendEntry {
	if r.head == r.tail {
		return nil
	}
	if e := r.at(r.head); !r.hasOutcome(e) {
		e.done, e.status = true, rdma.StatusFlushed
	}
	return r.advance()
}

// hasOutcome reports whether the outcome of the oldest request is known. A silent request has
// succeeded once the device reports a later one. That does not hold for Reads, which are therefore
// always posted to the device as signaled.
func (r *sendRing) hasOutcome(oldest *sendEntry) bool {
	return oldest.done || oldest.silent && oldest.opcode != rdma.OpRead && r.reported != r.head
}

// advance removes and returns the oldest request.
func (r *sendRing) advance() *sendEntry {
	if r.reported == r.head {
		r.reported++
	}
	r.head++
	return r.at(r.head - 1)
}

// receiveEntry is a posted receive.
type receiveEntry struct {
	id     uint64
	length uint32 // bytes received
	done   bool   // the device has reported the outcome
	status rdma.CompletionStatus
}

// receiveRing mirrors the device's receive queue.
type receiveRing struct{ ring[receiveEntry] }

// report records the outcome of a receive.
func (r *receiveRing) report(index, length uint32, outcome rdma.CompletionStatus) {
	e := r.at(index)
	e.done, e.length, e.status = true, length, outcome
}

// next removes and returns the oldest receive if its outcome is known, else nil.
func (r *receiveRing) next() *receiveEntry {
	if r.head == r.tail || !r.at(r.head).done {
		return nil
	}
	r.head++
	return r.at(r.head - 1)
}

// nextFlushed removes and returns the oldest receive, or nil if the ring is empty. If the outcome
// is unknown, it becomes StatusFlushed.
func (r *receiveRing) nextFlushed() *receiveEntry {
	if r.head == r.tail {
		return nil
	}
	e := r.at(r.head)
	if !e.done {
		e.length, e.status = 0, rdma.StatusFlushed
	}
	r.head++
	return e
}

// completionRing queues completions between the device and the caller of Poll. Poll fills it only
// while it holds fewer completions than the caller asked for. It still has to grow at times,
// because one completion from the device can complete many requests, and the end of a connection
// completes all of them.
type completionRing struct {
	entries []rdma.Completion
	head    uint32 // the oldest completion
	tail    uint32 // the next free entry
}

func newCompletionRing(capacity int) completionRing {
	return completionRing{entries: make([]rdma.Completion, ringSize(capacity))}
}

func (r *completionRing) len() int { return int(r.tail - r.head) }

func (r *completionRing) push(c rdma.Completion) {
	if r.len() == len(r.entries) {
		r.grow()
	}
	r.entries[r.tail&uint32(len(r.entries)-1)] = c
	r.tail++
}

func (r *completionRing) grow() {
	larger := make([]rdma.Completion, 2*len(r.entries))
	n := r.pop(larger)
	r.entries, r.head, r.tail = larger, 0, uint32(n)
}

// pop moves the oldest completions to the caller and returns their number.
func (r *completionRing) pop(completions []rdma.Completion) int {
	n := min(len(completions), r.len())
	for i := range n {
		completions[i] = r.entries[r.head&uint32(len(r.entries)-1)]
		r.head++
	}
	return n
}

// A work ID identifies a request to the device: bit 63 says which ring it is in, the next 31 bits
// are the token of its connection, and the low 32 bits are its index. A token combines the
// connection's slot in the completion queue with a generation, so that a completion for a
// connection that no longer exists is recognized.
const (
	slotBits       = 16
	maxSlots       = 1 << slotBits
	maxGeneration  = 1<<15 - 1
	tokenShift     = 32
	receiveWorkBit = 1 << 63
)

func newToken(slot int, generation uint32) uint32 {
	return uint32(slot) | (generation&maxGeneration)<<slotBits
}

func slotOf(token uint32) int { return int(token & (maxSlots - 1)) }

func sendWorkID(token, index uint32) uint64 { return uint64(token)<<tokenShift | uint64(index) }

func receiveWorkID(token, index uint32) uint64 { return receiveWorkBit | sendWorkID(token, index) }

func splitWorkID(id uint64) (token, index uint32, receive bool) {
	return uint32(id&^receiveWorkBit>>tokenShift) & (1<<31 - 1), uint32(id), id&receiveWorkBit != 0
}
