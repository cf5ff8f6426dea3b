//go:build verbs

package verbs

import (
	"math/bits"

	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// sendEntry is a posted send, write or read.
type sendEntry struct {
	id     uint64
	opcode rdma.Opcode
	silent bool
	done   bool // the device has reported the outcome
	status rdma.CompletionStatus
}

// sendRing mirrors the device's send queue. Its indices only grow and are
// taken modulo the ring's size; head ≤ reported ≤ tail.
type sendRing struct {
	entries []sendEntry
	limit   uint32 // requests that may be outstanding
	head    uint32 // oldest request that has not completed
	// reported is the index after the latest request of which the device has
	// reported the outcome. Silent ones before it have succeeded.
	reported uint32
	tail     uint32 // next to be posted
}

func newSendRing(limit int) sendRing {
	return sendRing{entries: make([]sendEntry, ringSize(limit)), limit: uint32(limit)}
}

// ringSize is the power of two that holds n elements.
func ringSize(n int) int { return 1 << bits.Len(uint(max(n, 1)-1)) }

func (r *sendRing) at(index uint32) *sendEntry { return &r.entries[index&uint32(len(r.entries)-1)] }

func (r *sendRing) room() uint32 { return r.limit - (r.tail - r.head) }

// holds tells whether index is that of an outstanding request.
func (r *sendRing) holds(index uint32) bool { return index-r.head < r.tail-r.head }

// report notes the outcome of a request. Devices report in the order of
// posting, but siw, which reports what follows a Read before the Read.
func (r *sendRing) report(index uint32, outcome rdma.CompletionStatus) {
	e := r.at(index)
	e.done, e.status = true, outcome
	if index+1-r.head > r.reported-r.head {
		r.reported = index + 1
	}
}

// next takes the oldest request if its outcome is known. A silent request has
// succeeded when a later one is reported; that does not hold for a Read,
// which is therefore never silent towards the device.
func (r *sendRing) next() *sendEntry {
	if r.head == r.tail {
		return nil
	}
	e := r.at(r.head)
	if !e.done && (!e.silent || e.opcode == rdma.OpRead || r.reported == r.head) {
		return nil
	}
	r.advance()
	return e
}

// flush takes the oldest request, whatever its outcome.
func (r *sendRing) flush() *sendEntry {
	if r.head == r.tail {
		return nil
	}
	e := r.at(r.head)
	if !e.done && (!e.silent || e.opcode == rdma.OpRead || r.reported == r.head) {
		e.done, e.status = true, rdma.StatusFlushed
	}
	r.advance()
	return e
}

func (r *sendRing) advance() {
	if r.reported == r.head {
		r.reported++
	}
	r.head++
}

// receiveEntry is a posted receive.
type receiveEntry struct {
	id     uint64
	length uint32 // received
	done   bool
	status rdma.CompletionStatus
}

// receiveRing mirrors the device's receive queue: head ≤ tail.
type receiveRing struct {
	entries []receiveEntry
	limit   uint32
	head    uint32
	tail    uint32
}

func newReceiveRing(limit int) receiveRing {
	return receiveRing{entries: make([]receiveEntry, ringSize(limit)), limit: uint32(limit)}
}

func (r *receiveRing) at(index uint32) *receiveEntry {
	return &r.entries[index&uint32(len(r.entries)-1)]
}

func (r *receiveRing) room() uint32 { return r.limit - (r.tail - r.head) }

func (r *receiveRing) holds(index uint32) bool { return index-r.head < r.tail-r.head }

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

// flush takes the oldest receive, whatever its outcome.
func (r *receiveRing) flush() *receiveEntry {
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
