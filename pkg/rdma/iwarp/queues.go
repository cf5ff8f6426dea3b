// SPDX-License-Identifier: Apache-2.0

package iwarp

import (
	"github.com/zc-relay/zc-relay/internal/fifo"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/registration"
)

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
	stag        uint32 // of the latest Read
}

func newReadRequester(limit int) readRequester {
	return readRequester{
		outstanding: fifo.New[outstandingRead](limit), stag: registration.RandomKey(),
	}
}

// begin records that the Read at index work of the send queue is being sent, and returns its sink
// STag. The sink's tagged offsets start at 0.
func (r *readRequester) begin(work uint32) uint32 {
	r.stag++
	*r.outstanding.Push() = outstandingRead{work: work, stag: r.stag} // Reads is at most ReadLimit
	return r.stag
}

// oldest returns the Read that the next response must belong to, or nil if none is outstanding.
func (r *readRequester) oldest() *outstandingRead {
	if r.outstanding.Len() == 0 {
		return nil
	}
	return r.outstanding.Front()
}
