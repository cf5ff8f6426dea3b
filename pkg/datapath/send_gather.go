package datapath

import (
	"math/bits"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

const (
	// messagesPerSend is how many IO messages one Send on a data connection may carry. A Send costs
	// both sides about as much as everything else they do for an IO; beyond eight messages, little
	// of that cost is left to share.
	messagesPerSend = 8
	// bytesPerSend is how much data ends a Send early: only the messages of the Send announce the
	// data that travels ahead of them.
	bytesPerSend = 32 << 10
	// requestsPerPost is how many work requests can be gathered before they are posted.
	requestsPerPost = 64
)

// sendGather gathers what a lane sends on one connection: messages, several to a Send, and the data
// transfers that travel ahead of them. It belongs to the worker's thread.
//
// Messages live in a ring of registered memory until the Send that carries them has completed.
type sendGather struct {
	memory *messageMemory
	first  uint32 // index in memory of the ring's first message
	mask   uint32 // size of the ring - 1; the size is a power of two
	// capacity is how many messages may be in the ring. The ring itself may be larger, because its
	// size is rounded up.
	capacity uint32
	// Positions in the ring are never reset: they wrap at 2^32. Messages from completed to sent are
	// in Sends that have not completed; those from sent to tail have no Send yet.
	completed, sent, tail uint32
	limit                 uint32 // messages that the peer accepts in one Send
	bytes                 uint32 // of data gathered since sent

	requests [requestsPerPost]rdma.SendRequest
	count    int
}

// sendCapacity returns how many messages may be in the ring of a lane of the given depth. It is
// twice the depth because the completion of a Send is often polled after the peer's response to its
// messages.
func sendCapacity(depth int) uint32 { return uint32(2*depth + spareMessages) }

// sendQueueDepth returns how many work requests a connection must accept at a time: each message
// may have its own Send, with its own transfer ahead of it. An RDMA Read takes the place of the
// response that follows it.
func sendQueueDepth(depth int) int { return 2 * int(sendCapacity(depth)) }

// newSendGather returns the sendGather of a lane of the given depth. Its ring begins at message
// first of the lane's memory. The peer accepts one message per Send until its hello says more.
func newSendGather(first uint32, depth int) sendGather {
	capacity := sendCapacity(depth)
	return sendGather{
		first: first, mask: 1<<bits.Len32(capacity-1) - 1, capacity: capacity, limit: 1,
	}
}

// end returns the index of the first message after the ring.
func (g *sendGather) end() uint32 { return g.first + g.mask + 1 }

// pending returns how many messages are in the ring.
func (g *sendGather) pending() uint32 { return g.tail - g.completed }

// room returns how many more messages fit.
func (g *sendGather) room() uint32 { return g.capacity - g.pending() }

// isFull reports whether the next message, or the transfer ahead of it, may not fit before the
// gathered requests are posted.
func (g *sendGather) isFull() bool { return g.count > len(g.requests)-2 }

// addTransfer returns a work request, for the caller to fill in, that moves length bytes ahead of
// the next message. It needs no completion of its own.
func (g *sendGather) addTransfer(length uint32) *rdma.SendRequest {
	r := &g.requests[g.count]
	g.count++
	g.bytes += length
	r.Silent = true
	return r
}

// addMessage returns the memory of the next message, for the caller to fill in. There must be room.
func (g *sendGather) addMessage() *message {
	m := g.memory.at(g.first + g.tail&g.mask)
	g.tail++
	// A Send ends when the peer accepts no more, at the end of the ring, or when its data must not
	// wait any longer.
	if g.tail-g.sent >= g.limit || g.tail&g.mask == 0 || g.bytes >= bytesPerSend {
		g.endSend()
	}
	return m
}

// endSend makes one Send of all messages that have none yet.
func (g *sendGather) endSend() {
	if g.sent == g.tail {
		return
	}
	r := &g.requests[g.count]
	g.count++
	r.Opcode, r.Silent = rdma.OpSend, true
	r.Local = g.memory.segment(g.first + g.sent&g.mask)
	r.Local.Length = (g.tail - g.sent) * iomsg.Size
	r.RemoteKey, r.RemoteAddress = 0, 0
	g.sent, g.bytes = g.tail, 0
}

// finish returns the gathered work requests, valid until the next message or transfer is added.
// Only the last one reports its completion. The caller then passes the index in its ID to release.
func (g *sendGather) finish() []rdma.SendRequest {
	g.endSend()
	if g.count == 0 {
		return nil
	}
	last := &g.requests[g.count-1]
	last.Silent = false
	last.ID = workID(messageWork, g.tail)
	requests := g.requests[:g.count]
	g.count = 0
	return requests
}

// release frees the messages up to position, whose Sends have completed.
func (g *sendGather) release(position uint32) { g.completed = position }
