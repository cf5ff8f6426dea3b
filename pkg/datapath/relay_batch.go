package datapath

import "github.com/zc-relay/zc-relay/pkg/rdma"

// requestBatch is what the requests of one poll send on one connection: a
// Send each, and a Write before it if there is data to push.
type requestBatch struct {
	requests [2 * comchBatch]rdma.SendRequest
	count    int
}

// next is the place of one more request, which the caller fills.
func (b *requestBatch) next() *rdma.SendRequest {
	r := &b.requests[b.count]
	b.count++
	return r
}

// take empties the batch. What it returns is valid until next is called.
func (b *requestBatch) take() []rdma.SendRequest {
	requests := b.requests[:b.count]
	b.count = 0
	return requests
}
