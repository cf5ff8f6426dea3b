//go:build verbs

package verbs

import "github.com/zc-relay/zc-relay/pkg/rdma"

// completionRing queues completions between the device and the caller. It is
// filled only while it holds fewer than the caller takes, but a request can
// release many silent ones and the end of a connection all of its requests:
// then it grows.
type completionRing struct {
	entries []rdma.Completion
	head    uint32
	tail    uint32
}

func newCompletionRing(capacity int) completionRing {
	return completionRing{entries: make([]rdma.Completion, ringSize(capacity))}
}

func (r *completionRing) len() int { return int(r.tail - r.head) }

func (r *completionRing) push(c rdma.Completion) {
	if r.len() == len(r.entries) {
		r.grow()
	}
	r.entries[r.tail&uint32(len(r.entries)-1)] = c
	r.tail++
}

func (r *completionRing) grow() {
	larger := make([]rdma.Completion, 2*len(r.entries))
	n := r.take(larger)
	r.entries, r.head, r.tail = larger, 0, uint32(n)
}

// take moves completions to the caller.
func (r *completionRing) take(completions []rdma.Completion) int {
	n := min(len(completions), r.len())
	for i := range n {
		completions[i] = r.entries[r.head&uint32(len(r.entries)-1)]
		r.head++
	}
	return n
}
