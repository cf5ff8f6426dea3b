package shm

import (
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
