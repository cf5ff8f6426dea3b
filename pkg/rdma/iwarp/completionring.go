package iwarp

import "github.com/zc-relay/zc-relay/pkg/rdma"

// completionEntry is a completion on its way to the caller, with what its
// collection gives back to the connection.
type completionEntry struct {
	completion rdma.Completion
	connection *connection
	slots      uint32 // of the send queue or of the receive queue
}

// initialCompletions is the room that a queue begins with. Whoever polls
// hardly ever leaves more behind; and what a queue was made for would be
// scanned by every garbage collection, which on its way stops the data path.
const initialCompletions = 1024

// completionRing queues completions. It grows with the requests that the
// connections of a queue have outstanding; that is its bound, for a request's
// slot is not free before its completion is collected.
type completionRing struct {
	entries []completionEntry
	head    uint32
	tail    uint32
}

func newCompletionRing(capacity int) completionRing {
	return completionRing{entries: make([]completionEntry, ringSize(min(capacity, initialCompletions)))}
}

func (r *completionRing) len() int { return int(r.tail - r.head) }

func (r *completionRing) push(e completionEntry) {
	if r.len() == len(r.entries) {
		r.grow()
	}
	r.entries[r.tail&uint32(len(r.entries)-1)] = e
	r.tail++
}

func (r *completionRing) grow() {
	larger := make([]completionEntry, 2*len(r.entries))
	n := 0
	for ; r.head != r.tail; r.head++ {
		larger[n] = r.entries[r.head&uint32(len(r.entries)-1)]
		n++
	}
	r.entries, r.head, r.tail = larger, 0, uint32(n)
}

// collect moves completions to the caller and frees their slots.
func (r *completionRing) collect(completions []rdma.Completion) int {
	n := min(len(completions), r.len())
	for i := range n {
		e := &r.entries[r.head&uint32(len(r.entries)-1)]
		completions[i] = e.completion
		if e.completion.Opcode == rdma.OpReceive {
			e.connection.receives.freed += e.slots
		} else {
			e.connection.sends.freed += e.slots
		}
		// A connection that is gone must not be kept alive by old entries.
		e.connection = nil
		r.head++
	}
	return n
}
