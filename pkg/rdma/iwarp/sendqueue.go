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

// pending tells whether there is a request to be turned into FPDUs.
func (q *sendQueue) pending() bool { return q.next != q.tail }

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
