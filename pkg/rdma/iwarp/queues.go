package iwarp

import (
	"math/bits"

	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// sendWork is a posted send, write or read.
type sendWork struct {
	id     uint64
	region *memoryRegion // nil if there are no bytes
	local  uint64        // offset in the region
	remote uint64        // tagged offset at the peer, for writes and reads
	length uint32
	stag   uint32 // the peer's, for writes and reads
	opcode rdma.Opcode
	silent bool
	// chained: the next request was posted together with this one and follows
	// it without anything in between.
	chained bool
	// done: the response of a read has arrived.
	done bool
}

// sendQueue is a ring of requests. Its indices only grow and are taken modulo
// the ring's size; freed ≤ head ≤ sent ≤ next ≤ tail.
type sendQueue struct {
	ring  []sendWork
	limit uint32 // requests that may be outstanding
	freed uint32 // completions collected: the slots may be used again
	head  uint32 // oldest request that has not completed
	sent  uint32 // TCP has taken everything before it
	next  uint32 // next request to be turned into FPDUs
	tail  uint32 // next to be posted
}

func newSendQueue(limit int) sendQueue {
	return sendQueue{ring: make([]sendWork, ringSize(limit)), limit: uint32(limit)}
}

// ringSize is the power of two that holds n elements.
func ringSize(n int) int { return 1 << bits.Len(uint(max(n, 1)-1)) }

func (q *sendQueue) at(index uint32) *sendWork { return &q.ring[index&uint32(len(q.ring)-1)] }

// room is how many requests can be posted.
func (q *sendQueue) room() uint32 { return q.limit - (q.tail - q.freed) }

// receiveWork is a posted receive.
type receiveWork struct {
	id     uint64
	region *memoryRegion // nil if it takes no bytes
	local  uint64
	length uint32
}

// receiveQueue is a ring like sendQueue: freed ≤ head ≤ tail.
type receiveQueue struct {
	ring  []receiveWork
	limit uint32
	freed uint32
	head  uint32 // oldest that has not been filled
	tail  uint32
}

func newReceiveQueue(limit int) receiveQueue {
	return receiveQueue{ring: make([]receiveWork, ringSize(limit)), limit: uint32(limit)}
}

func (q *receiveQueue) at(index uint32) *receiveWork { return &q.ring[index&uint32(len(q.ring)-1)] }

func (q *receiveQueue) room() uint32 { return q.limit - (q.tail - q.freed) }

// readResponse is a Read Request of the peer that is yet to be answered.
type readResponse struct {
	region *memoryRegion // nil if there are no bytes
	source uint64        // offset in the region
	sink   uint64        // tagged offset at the peer
	stag   uint32        // the peer's
	length uint32
}

// readResponder holds the Read Requests of the peer in their order, at most
// as many as the inbound read depth.
type readResponder struct {
	ring  []readResponse
	limit uint32
	head  uint32
	tail  uint32
}

func newReadResponder(limit int) readResponder {
	return readResponder{ring: make([]readResponse, ringSize(limit)), limit: uint32(limit)}
}

func (r *readResponder) at(index uint32) *readResponse { return &r.ring[index&uint32(len(r.ring)-1)] }

func (r *readResponder) full() bool { return r.tail-r.head == r.limit }

// outstandingRead is a Read that was sent and waits for its response.
type outstandingRead struct {
	work uint32 // index in the send queue
	stag uint32 // sink STag
}

// readRequester holds the outstanding Reads in their order, which is that of
// the responses.
//
// Sink STags live here and not in the memory table: a Write cannot use one,
// and it is spent with the response that it was made for.
type readRequester struct {
	ring   []outstandingRead
	limit  uint32
	posted uint32 // Reads posted and not yet answered
	head   uint32
	tail   uint32
	stag   uint32 // of the latest Read
}

func newReadRequester(limit int) readRequester {
	return readRequester{ring: make([]outstandingRead, ringSize(limit)), limit: uint32(limit), stag: randomSTag()}
}

// begin records that the Read at index work is being sent and returns its
// sink STag. The sink's tagged offsets begin at 0.
func (r *readRequester) begin(work uint32) uint32 {
	r.stag++
	r.ring[r.tail&uint32(len(r.ring)-1)] = outstandingRead{work: work, stag: r.stag}
	r.tail++
	return r.stag
}

// oldest is the Read that the next response must be for, nil if none is
// outstanding.
func (r *readRequester) oldest() *outstandingRead {
	if r.head == r.tail {
		return nil
	}
	return &r.ring[r.head&uint32(len(r.ring)-1)]
}

func (r *readRequester) completeOldest() {
	r.head++
	r.posted--
}
