//go:build verbs

package verbs

import (
	"math/bits"

	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// ring holds the requests that are posted to one of a connection's queues. Its
// indices only grow and are taken modulo its size; head ≤ tail.
type ring[E any] struct {
	entries []E
	limit   uint32 // requests that may be outstanding
	head    uint32 // oldest request that has not completed
	tail    uint32 // next to be posted
}

func newRing[E any](limit int) ring[E] {
	return ring[E]{entries: make([]E, ringSize(limit)), limit: uint32(limit)}
}

// ringSize is the power of two that holds n elements.
func ringSize(n int) int { return 1 << bits.Len(uint(max(n, 1)-1)) }

func (r *ring[E]) at(index uint32) *E { return &r.entries[index&uint32(len(r.entries)-1)] }

func (r *ring[E]) room() uint32 { return r.limit - (r.tail - r.head) }

// hasOutstanding tells whether index is that of an outstanding request.
func (r *ring[E]) hasOutstanding(index uint32) bool { return index-r.head < r.tail-r.head }

// sendEntry is a posted send, write or read.
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
	// reported is the index after the latest request of which the device has
	// reported the outcome, at most tail and at least head. Silent ones before
	// it have succeeded.
	reported uint32
}

// report notes the outcome of a request. Devices report in the order of
// posting, but siw, which reports what follows a Read before the Read.
func (r *sendRing) report(index uint32, outcome rdma.CompletionStatus) {
	e := r.at(index)
	e.done, e.status = true, outcome
	if index+1-r.head > r.reported-r.head {
		r.reported = index + 1
	}
}

// next takes the oldest request if its outcome is known.
func (r *sendRing) next() *sendEntry {
	if r.head == r.tail || !r.hasOutcome(r.at(r.head)) {
		return nil
	}
	return r.advance()
}

// nextFlushed takes the oldest request, whatever its outcome.
func (r *sendRing) nextFlushed() *sendEntry {
	if r.head == r.tail {
		return nil
	}
	if e := r.at(r.head); !r.hasOutcome(e) {
		e.done, e.status = true, rdma.StatusFlushed
	}
	return r.advance()
}

// hasOutcome tells whether the outcome of the oldest request is known. A
// silent request has succeeded when a later one is reported; that does not
// hold for a Read, which is therefore never silent towards the device.
func (r *sendRing) hasOutcome(oldest *sendEntry) bool {
	return oldest.done || oldest.silent && oldest.opcode != rdma.OpRead && r.reported != r.head
}

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
	length uint32 // received
	done   bool
	status rdma.CompletionStatus
}

// receiveRing mirrors the device's receive queue.
type receiveRing struct{ ring[receiveEntry] }

func (r *receiveRing) report(index, length uint32, outcome rdma.CompletionStatus) {
	e := r.at(index)
	e.done, e.length, e.status = true, length, outcome
}

// next takes the oldest receive if its outcome is known.
func (r *receiveRing) next() *receiveEntry {
	if r.head == r.tail || !r.at(r.head).done {
		return nil
	}
	r.head++
	return r.at(r.head - 1)
}

// nextFlushed takes the oldest receive, whatever its outcome.
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

// completionRing queues completions between the device and the caller. It is
// filled only while it holds fewer than the caller takes, but a request can
// release many silent ones and the end of a connection all of its requests:
// then it grows.
type completionRing struct {
	entries []rdma.Completion
	head    uint32
	tail    uint32
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

// pop moves completions to the caller.
func (r *completionRing) pop(completions []rdma.Completion) int {
	n := min(len(completions), r.len())
	for i := range n {
		completions[i] = r.entries[r.head&uint32(len(r.entries)-1)]
		r.head++
	}
	return n
}

// A work id names a request towards the device: bit 63 says which ring it is
// in, 31 bits of which connection it is, and 32 bits are its index. The token
// of a connection is its slot in the completion queue and a generation, so
// that what a device reports after a connection is gone is recognised.
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
