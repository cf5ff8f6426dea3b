package datapath

import (
	"math/bits"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

const (
	// messagesPerSend is how many IO messages one Send on a data connection
	// may carry. A Send costs both sides about as much as all else that they
	// do for an IO; of that, beyond eight, there is little left to share.
	messagesPerSend = 8
	// bytesPerSend is how much data may go ahead of the messages of one Send:
	// the peer learns only from them that it has arrived.
	bytesPerSend = 32 << 10
	// requestsPerPost is how many work requests are gathered at most.
	requestsPerPost = 64
)

// outgoing gathers what a lane sends on one connection: messages, several to
// a Send, and transfers that go ahead of them. It belongs to the worker's
// thread.
//
// Messages live in a ring of registered memory until the Send that carries
// them has completed.
type outgoing struct {
	memory *messageMemory
	first  uint32 // index in memory of the ring
	mask   uint32 // size of the ring - 1; the size is a power of two
	// capacity is how many messages may be in the ring: the size rounds up.
	capacity uint32
	// Positions in the ring, counting up for ever: messages from head to sent
	// wait for a completion, those from sent to tail for their Send.
	head, sent, tail uint32
	limit            uint32 // messages that the peer takes in one Send
	bytes            uint32 // of data ahead of the messages since sent

	requests [requestsPerPost]rdma.SendRequest
	count    int
}

// outgoingCapacity is how many messages may be on their way for a depth: as
// many again as can be unanswered may wait for the completion of their Send,
// which is often seen after the answer.
func outgoingCapacity(depth int) uint32 { return uint32(2*depth + spareMessages) }

// sendRequests is how many work requests a connection must take at a time:
// each message may have a Send, and a transfer ahead of it, of its own. An RDMA
// Read belongs to a request whose answer is yet to come.
func sendRequests(depth int) int { return 2 * int(outgoingCapacity(depth)) }

// newOutgoing makes the sending side for a depth. Its ring begins at the
// message with index first. The peer takes one message in a Send until its
// hello says more.
func newOutgoing(first uint32, depth int) outgoing {
	capacity := outgoingCapacity(depth)
	return outgoing{first: first, mask: 1<<bits.Len32(capacity-1) - 1, capacity: capacity, limit: 1}
}

// end is the index of the first message behind the ring.
func (o *outgoing) end() uint32 { return o.first + o.mask + 1 }

// waiting is how many messages wait for the completion of their Send.
func (o *outgoing) waiting() uint32 { return o.tail - o.head }

// room is how many messages fit.
func (o *outgoing) room() uint32 { return o.capacity - o.waiting() }

// full reports that a message, or the transfer ahead of it, may not fit: what
// is gathered has to be taken first.
func (o *outgoing) full() bool { return o.count > len(o.requests)-2 }

// transfer is the work request, to be filled, of length bytes that go ahead
// of the next message. It needs no completion of its own.
func (o *outgoing) transfer(length uint32) *rdma.SendRequest {
	r := &o.requests[o.count]
	o.count++
	o.bytes += length
	r.Silent = true
	return r
}

// message is the memory, to be filled, of the next message. There must be
// room.
func (o *outgoing) message() *message {
	m := o.memory.at(o.first + o.tail&o.mask)
	o.tail++
	if o.tail-o.sent >= o.limit || o.tail&o.mask == 0 || o.bytes >= bytesPerSend {
		o.endSend()
	}
	return m
}

// endSend makes one Send of all messages that have none yet.
func (o *outgoing) endSend() {
	if o.sent == o.tail {
		return
	}
	r := &o.requests[o.count]
	o.count++
	r.Opcode, r.Silent = rdma.OpSend, true
	r.Local = o.memory.segment(o.first + o.sent&o.mask)
	r.Local.Length = (o.tail - o.sent) * iomsg.Size
	r.RemoteKey, r.RemoteAddress = 0, 0
	o.sent, o.bytes = o.tail, 0
}

// take ends the gathering and returns what there is to post, valid until the
// next message or transfer. The last request stands for all: when it has
// completed, release may be called with the index of its id.
func (o *outgoing) take() []rdma.SendRequest {
	o.endSend()
	if o.count == 0 {
		return nil
	}
	last := &o.requests[o.count-1]
	last.Silent = false
	last.ID = workID(messageWork, o.tail)
	requests := o.requests[:o.count]
	o.count = 0
	return requests
}

// release frees the messages up to a position: their Sends have completed.
func (o *outgoing) release(position uint32) { o.head = position }
