package shm

import "github.com/zc-relay/zc-relay/pkg/rdma"

// completionEntry is a completion that has not been polled, and the number of slots of the
// connection's send queue or receive queue that polling it frees.
type completionEntry struct {
	completion rdma.Completion
	connection *connection
	slots      uint32
}

// initialCompletions is the largest initial size of a ring. Pollers hardly ever leave more
// completions behind.
const initialCompletions = 1024

// completionRing is a FIFO of completions. It grows with the requests that its connections have
// outstanding. That also bounds it, because a request's slot stays in use until its completion is
// polled.
type completionRing struct {
	entries []completionEntry
	head    uint32
	tail    uint32
}

func newCompletionRing(capacity int) completionRing {
	return completionRing{entries: make([]completionEntry,
		ringSize(min(capacity, initialCompletions)))}
}

func (r *completionRing) len() int { return int(r.tail - r.head) }

func (r *completionRing) at(index uint32) *completionEntry {
	return &r.entries[index&uint32(len(r.entries)-1)]
}

func (r *completionRing) push(e completionEntry) {
	if r.len() == len(r.entries) {
		larger := make([]completionEntry, 2*len(r.entries))
		for i := range larger[:r.len()] {
			larger[i] = *r.at(r.head + uint32(i))
		}
		r.head, r.tail, r.entries = 0, uint32(r.len()), larger
	}
	*r.at(r.tail) = e
	r.tail++
}

// collect moves completions to the caller, frees their slots, and returns their number.
func (r *completionRing) collect(completions []rdma.Completion) int {
	n := min(len(completions), r.len())
	for i := range n {
		e := r.at(r.head)
		completions[i] = e.completion
		if e.completion.Opcode == rdma.OpReceive {
			e.connection.receives.freed += e.slots
		} else {
			e.connection.sends.freed += e.slots
		}
		e.connection = nil // an old entry must not keep a detached connection alive
		r.head++
	}
	return n
}
