package iwarp

import (
	"math/bits"

	"github.com/zc-relay/zc-relay/internal/fifo"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/registration"
)

// sendWork is a posted Send, Write, or Read.
type sendWork struct {
	id     uint64
	region *registration.Region // nil if the length is 0
	local  uint64               // offset in region
	remote uint64               // the peer's tagged offset, for Writes and Reads
	length uint32
	stag   uint32 // the peer's, for Writes and Reads
	opcode rdma.Opcode
	silent bool
	// chained is set if the next request was posted together with this one and must follow it
	// directly.
	chained bool
	done    bool // a Read's response has arrived
}

// sendQueue is a ring of requests. Its indices only grow and are taken modulo the ring's size;
// freed ≤ head ≤ sent ≤ next ≤ tail.
type sendQueue struct {
	ring  []sendWork
	limit uint32 // requests that may be outstanding
	freed uint32 // slots before it can be reused: their completions have been polled
	head  uint32 // oldest request that has not completed
	sent  uint32 // TCP has accepted everything before it
	next  uint32 // next request to be cut into FPDUs
	tail  uint32 // where the next request is posted
}

func newSendQueue(limit int) sendQueue {
	return sendQueue{ring: make([]sendWork, ringSize(limit)), limit: uint32(limit)}
}

// ringSize returns the smallest power of two that holds n elements.
func ringSize(n int) int { return 1 << bits.Len(uint(max(n, 1)-1)) }

func (q *sendQueue) at(index uint32) *sendWork { return &q.ring[index&uint32(len(q.ring)-1)] }

// room returns how many requests can be posted.
func (q *sendQueue) room() uint32 { return q.limit - (q.tail - q.freed) }

// receiveWork is a posted receive.
type receiveWork struct {
	id     uint64
	region *registration.Region // nil if the length is 0
	local  uint64               // offset in region
	length uint32
}

// receiveQueue is a ring like sendQueue: freed ≤ head ≤ tail.
type receiveQueue struct {
	ring  []receiveWork
	limit uint32 // receives that may be outstanding
	freed uint32 // slots before it can be reused: their completions have been polled
	head  uint32 // oldest receive that has not completed
	tail  uint32 // where the next receive is posted
}

func newReceiveQueue(limit int) receiveQueue {
	return receiveQueue{ring: make([]receiveWork, ringSize(limit)), limit: uint32(limit)}
}

func (q *receiveQueue) at(index uint32) *receiveWork { return &q.ring[index&uint32(len(q.ring)-1)] }

// room returns how many receives can be posted.
func (q *receiveQueue) room() uint32 { return q.limit - (q.tail - q.freed) }

// readResponse is the response that is due for a Read Request by the peer.
type readResponse struct {
	region *registration.Region // nil if the length is 0
	source uint64               // offset in region
	sink   uint64               // the peer's tagged offset
	stag   uint32               // the peer's
	length uint32
}

// outstandingRead is a Read whose request has been sent and whose response has not arrived.
type outstandingRead struct {
	work uint32 // index in the send queue
	stag uint32 // sink STag
}

// readRequester holds the outstanding Reads in the order in which their responses arrive.
//
// Sink STags exist only here and not in the memory table: no Write can use one, and each is valid
// for one response only.
type readRequester struct {
	outstanding fifo.Queue[outstandingRead]
	limit       uint32 // the outbound read depth
	posted      uint32 // Reads posted whose response has not arrived
	stag        uint32 // of the latest Read
}

func newReadRequester(limit int) readRequester {
	return readRequester{
		outstanding: fifo.New[outstandingRead](limit), limit: uint32(limit),
		stag: registration.RandomKey(),
	}
}

// begin records that the Read at index work of the send queue is being sent, and returns its sink
// STag. The sink's tagged offsets start at 0.
func (r *readRequester) begin(work uint32) uint32 {
	r.stag++
	*r.outstanding.Push() = outstandingRead{work: work, stag: r.stag} // posted is at most limit
	return r.stag
}

// oldest returns the Read that the next response must belong to, or nil if none is outstanding.
func (r *readRequester) oldest() *outstandingRead {
	if r.outstanding.Len() == 0 {
		return nil
	}
	return r.outstanding.Front()
}

func (r *readRequester) completeOldest() {
	r.outstanding.Pop()
	r.posted--
}
