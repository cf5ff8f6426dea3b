package shm

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
	remote uint64               // address in the peer's memory, for Writes and Reads
	end    uint64               // consumed completes it: see awaitsPeer
	length uint32
	key    uint32 // the peer's, for Writes and Reads
	opcode rdma.Opcode
	silent bool
	// lent is 1 plus the index of region in what the connection lends, or 0.
	lent uint8
	// awaitsPeer is set for a Write whose data the peer copies: the request completes when the peer
	// has consumed the ring up to end.
	awaitsPeer bool
	done       bool // a Read has its data
}

// workQueue is a ring of requests. Its indices only grow and are taken modulo the ring's size;
// freed ≤ head ≤ next ≤ tail.
type workQueue[T any] struct {
	ring  []T
	limit uint32 // requests that may be outstanding
	freed uint32 // slots before it can be reused: their completions have been polled
	head  uint32 // oldest request that has not completed
	next  uint32 // next request to transmit, in a send queue
	tail  uint32 // where the next request is posted
}

func newWorkQueue[T any](limit int) workQueue[T] {
	return workQueue[T]{ring: make([]T, ringSize(limit)), limit: uint32(limit)}
}

// ringSize returns the smallest power of two that holds n elements.
func ringSize(n int) int { return 1 << bits.Len(uint(max(n, 1)-1)) }

func (q *workQueue[T]) at(index uint32) *T { return &q.ring[index&uint32(len(q.ring)-1)] }

// room returns how many requests can be posted.
func (q *workQueue[T]) room() uint32 { return q.limit - (q.tail - q.freed) }

// receiveWork is a posted receive.
type receiveWork struct {
	id     uint64
	region *registration.Region // nil if the length is 0
	local  uint64               // offset in region
	length uint32
}

// readResponse is a Read by the peer that this side carries out.
type readResponse struct {
	region *registration.Region // nil if the length is 0
	source uint64               // offset in region
	sink   uint64               // offset in the peer's lent memory
	length uint32
	done   uint32 // bytes copied
	lent   uint8  // 1 plus the index of the peer's lent memory, or 0
}

// reads are the Reads of this side that the peer has been asked for, by their indices in the send
// queue. Responses arrive in the same order.
type reads struct {
	outstanding fifo.Queue[uint32]
	limit       uint32
	posted      uint32 // Reads posted that do not have their data
	received    uint32 // bytes of the oldest one's data
}
