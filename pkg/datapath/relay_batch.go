package datapath

import "github.com/zc-relay/zc-relay/pkg/rdma"

// requestBatch is what the requests of one poll send on one connection: a
// Send each, and a Write before it if there is data to push.
type requestBatch struct {
	requests [2 * comchBatch]rdma.SendRequest
	count    int
}

func (b *requestBatch) add(request rdma.SendRequest) {
	b.requests[b.count] = request
	b.count++
}

// take empties the batch. What it returns is valid until the next add.
func (b *requestBatch) take() []rdma.SendRequest {
	requests := b.requests[:b.count]
	b.count = 0
	return requests
}
