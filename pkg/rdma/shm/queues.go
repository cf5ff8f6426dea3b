// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/registration"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/softrdma"
)

// sendWork is a posted Send, Write, or Read.
type sendWork = softrdma.Send[lentWork]

// lentWork is what a send request has to do with lent memory.
type lentWork struct {
	// lent is 1 plus the index of the request's region in what the connection lends, or 0.
	lent uint8
	// awaitsPeer is set for a Write whose data the peer copies: the request completes when the peer
	// has consumed the ring up to end.
	awaitsPeer bool
	end        uint64
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
