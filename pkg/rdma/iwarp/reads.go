package iwarp

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

func (r *readResponder) pending() bool { return r.head != r.tail }

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

func (r *readRequester) finish() {
	r.head++
	r.posted--
}
