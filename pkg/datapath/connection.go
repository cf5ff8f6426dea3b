// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"math/bits"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

const (
	// spareMessages is the room, beyond the depth, for messages that are not IOs: hello and stop,
	// in both directions.
	spareMessages = 4
	// messagesPerSend is how many IO messages one Send on a data connection may carry. A Send costs
	// both sides about as much as everything else they do for an IO; beyond eight messages, little
	// of that cost is left to share.
	messagesPerSend = 8
	// bytesPerSend is how much data ends a Send early: only the messages of the Send announce the
	// data that travels ahead of them.
	bytesPerSend = 32 << 10
	// requestsPerPost is how many work requests can be gathered before they are posted.
	requestsPerPost = 64
	// receiveBatch is how many consumed receives are posted again at once.
	receiveBatch = 32
)

// workKind is the purpose of a work request. Its ID carries the kind and the index of the message
// or transaction that it belongs to.
type workKind uint8

const (
	receiveWork workKind = iota // a posted receive; index of its first message
	messageWork                 // gathered messages; the position to release
	readWork                    // an RDMA Read of data; index of the transaction
	writeWork                   // an RDMA Write of data ahead of a response on another connection
)

const workKindShift = 56

func workID(kind workKind, index uint32) uint64 {
	return uint64(kind)<<workKindShift | uint64(index)
}

func splitWorkID(id uint64) (workKind, uint32) {
	return workKind(id >> workKindShift), uint32(id)
}

// connection is one of a lane's two RDMA connections. It gathers what the lane sends: messages,
// several to a Send, and the data transfers that travel ahead of them. And it posts the receives.
// It belongs to the worker's thread.
type connection struct {
	role     iomsg.ConnectionRole
	rdma     rdma.Connection // nil until it is established
	messages *messageMemory

	// Messages to send live in a ring of messages until the Send that carries them has completed.
	firstSend uint32 // index in messages of the ring's first message
	mask      uint32 // size of the ring - 1; the size is a power of two
	// capacity is how many messages may be in the ring. The ring itself may be larger, because its
	// size is rounded up.
	capacity uint32
	// Positions in the ring are never reset: they wrap at 2^32. Messages from completed to sent are
	// in Sends that have not completed; those from sent to tail have no Send yet.
	completed, sent, tail uint32
	limit                 uint32 // messages that the peer accepts in one Send
	bytes                 uint32 // of data gathered since sent
	requests              [requestsPerPost]rdma.SendRequest
	count                 int // requests that are gathered

	firstReceive uint32 // index in messages of the first receive
	receives     uint32
	receiveSize  uint32 // messages that fit into one receive
	consumed     [receiveBatch]rdma.ReceiveRequest
	consumedLen  int

	unflushed    bool
	ready        bool // the hellos have been exchanged
	closed       bool // by this side
	disconnected bool // its last completion has been polled
}

// newConnections returns the two connections, not yet established, of a lane of the given depth,
// and the memory of their messages. Each has a receive for every message that can be outstanding,
// including hello and stop, because each may arrive in its own Send.
func newConnections(domain rdma.ProtectionDomain, depth int) (
	connections [iomsg.ConnectionRoleCount]connection, messages *messageMemory, err error) {
	connections, count := layOutConnections(depth)
	if messages, err = newMessageMemory(domain, count); err != nil {
		return connections, nil, err
	}
	for role := range iomsg.ConnectionRoleCount {
		connections[role].messages = messages
	}
	return connections, messages, nil
}

// layOutConnections returns the connections without their memory, and how many messages that must
// hold.
func layOutConnections(depth int) (
	connections [iomsg.ConnectionRoleCount]connection, messages int,
) {
	next := uint32(0)
	for role := range iomsg.ConnectionRoleCount {
		c := &connections[role]
		c.role, c.receives, c.receiveSize = role, uint32(depth+spareMessages), 1
		if role == iomsg.DataConnection { // the control connection carries few messages
			c.receiveSize = messagesPerSend
		}
		c.firstReceive = c.layOutSends(next, depth)
		next = c.firstReceive + c.receives*c.receiveSize
	}
	return connections, int(next)
}

// sendCapacity returns how many messages may be in the send ring of a lane of the given depth. It
// is twice the depth because the completion of a Send is often polled after the peer's response to
// its messages.
func sendCapacity(depth int) uint32 { return uint32(2*depth + spareMessages) }

// sendQueueDepth returns how many work requests a connection must accept at a time: each message
// may have its own Send, with its own transfer ahead of it. An RDMA Read takes the place of the
// response that follows it.
func sendQueueDepth(depth int) int { return 2 * int(sendCapacity(depth)) }

// layOutSends makes the send ring begin at message first, and returns the first message after it.
// The peer accepts one message per Send until its hello says more.
func (c *connection) layOutSends(first uint32, depth int) uint32 {
	c.firstSend, c.capacity, c.limit = first, sendCapacity(depth), 1
	c.mask = 1<<bits.Len32(c.capacity-1) - 1
	return first + c.mask + 1
}

// sendHello gathers this side's hello, which announces how many bytes of messages it accepts in one
// Send.
func (c *connection) sendHello() {
	hello := iomsg.Message{Type: iomsg.Hello, IOSize: c.receiveSize * iomsg.Size}
	iomsg.Encode(c.addMessage()[:], &hello)
}

// receiveHello makes the connection ready for messages.
func (c *connection) receiveHello(m *iomsg.Message) {
	c.ready = true
	c.limit = min(max(m.IOSize/iomsg.Size, 1), messagesPerSend)
}

// room returns how many more messages fit into the send ring.
func (c *connection) room() uint32 { return c.capacity - c.pending() }

// pending returns how many messages are in the send ring.
func (c *connection) pending() uint32 { return c.tail - c.completed }

// addTransfer returns a work request, for the caller to fill in, that moves length bytes ahead of
// the next message. It needs no completion of its own. Unless isFull, there is a place for both.
func (c *connection) addTransfer(length uint32) *rdma.SendRequest {
	r := &c.requests[c.count]
	c.count++
	c.bytes += length
	r.Silent = true
	return r
}

// addMessage returns the memory of the next message, for the caller to fill in. There must be room.
func (c *connection) addMessage() *message {
	if c.tail-c.completed >= c.capacity {
		c.overrun()
	}
	m := c.messages.at(c.firstSend + c.tail&c.mask)
	c.tail++
	// A Send ends when the peer accepts no more, at the end of the ring, or when its data must not
	// wait any longer.
	if c.tail-c.sent >= c.limit || c.tail&c.mask == 0 || c.bytes >= bytesPerSend {
		c.endSend()
	}
	return m
}

// overrun ends the process: a message would overwrite one that the device may still have to send.
func (c *connection) overrun() {
	panic(fmt.Sprintf("datapath: no room for a message on the %v connection: %d of %d are in its "+
		"ring (completed %d, sent %d, tail %d)", c.role, c.pending(), c.capacity, c.completed,
		c.sent, c.tail))
}

// isFull reports whether the next message, or the transfer ahead of it, may not fit before the
// gathered requests are posted.
func (c *connection) isFull() bool { return c.count > len(c.requests)-2 }

// endSend makes one Send of all messages that have none yet.
func (c *connection) endSend() {
	if c.sent == c.tail {
		return
	}
	r := &c.requests[c.count]
	c.count++
	r.Opcode, r.Silent = rdma.OpSend, true
	r.Local = c.messages.segment(c.firstSend + c.sent&c.mask)
	r.Local.Length = (c.tail - c.sent) * iomsg.Size
	r.RemoteKey, r.RemoteAddress = 0, 0
	c.sent, c.bytes = c.tail, 0
}

// finish returns the gathered work requests, valid until the next message or transfer is added.
// Only the last one reports its completion. The caller then passes the index in its ID to release.
func (c *connection) finish() []rdma.SendRequest {
	c.endSend()
	if c.count == 0 {
		return nil
	}
	last := &c.requests[c.count-1]
	last.Silent = false
	last.ID = workID(messageWork, c.tail)
	requests := c.requests[:c.count]
	c.count = 0
	return requests
}

// release frees the messages up to position, whose Sends have completed.
func (c *connection) release(position uint32) {
	if position-c.completed > c.sent-c.completed {
		panic(fmt.Sprintf("datapath: messages up to %d on the %v connection have been sent before "+
			"they were posted (completed %d, sent %d)", position, c.role, c.completed, c.sent))
	}
	c.completed = position
}

// post posts a chain of work requests.
func (c *connection) post(requests []rdma.SendRequest) error {
	c.unflushed = true
	if err := c.rdma.PostSend(requests); err != nil {
		return fmt.Errorf("post %d work requests on the %v connection: %w",
			len(requests), c.role, err)
	}
	return nil
}

// receive returns the work request of the receive that begins at message first.
func (c *connection) receive(first uint32) rdma.ReceiveRequest {
	local := c.messages.segment(first)
	local.Length = c.receiveSize * iomsg.Size
	return rdma.ReceiveRequest{ID: workID(receiveWork, first), Local: local}
}

// initialReceives returns the receives to post before the connection exists.
func (c *connection) initialReceives() []rdma.ReceiveRequest {
	requests := make([]rdma.ReceiveRequest, c.receives)
	for i := range requests {
		requests[i] = c.receive(c.firstReceive + uint32(i)*c.receiveSize)
	}
	return requests
}

// received returns the index of the first message of a received Send, and the number of its
// messages.
func (c *connection) received(completion *rdma.Completion) (first, count uint32, err error) {
	_, first = splitWorkID(completion.ID)
	if completion.Length == 0 || completion.Length%iomsg.Size != 0 {
		return 0, 0, status.Errorf(status.InvalidValue,
			"%v connection: received a Send of %d bytes, expected a positive multiple of %d",
			c.role, completion.Length, iomsg.Size)
	}
	return first, completion.Length / iomsg.Size, nil
}

// recycle queues the receive that begins at message first for posting. Its messages must have been
// handled.
func (c *connection) recycle(first uint32) error {
	c.consumed[c.consumedLen] = c.receive(first)
	if c.consumedLen++; c.consumedLen == receiveBatch {
		return c.postReceives()
	}
	return nil
}

// postReceives posts all consumed receives again.
func (c *connection) postReceives() error {
	if c.consumedLen == 0 || c.rdma == nil {
		return nil // until the lane has the connection, only its hello can arrive
	}
	requests := c.consumed[:c.consumedLen]
	c.consumedLen = 0
	if c.closed {
		return nil
	}
	c.unflushed = true
	if err := c.rdma.PostReceive(requests); err != nil {
		return fmt.Errorf("post %d receives on the %v connection: %w", len(requests), c.role, err)
	}
	return nil
}

func (c *connection) flush() {
	if c.unflushed && c.rdma != nil && !c.closed {
		c.rdma.Flush()
	}
	c.unflushed = false
}

// close ends the connection. Its work requests then complete as flushed.
func (c *connection) close() { c.end(rdma.Connection.Close) }

// reset is close for a connection with requests that the peer should not receive any more.
func (c *connection) reset() { c.end(rdma.Reset) }

func (c *connection) end(how func(rdma.Connection)) {
	if c.closed {
		return
	}
	c.closed = true
	if c.rdma != nil && !c.disconnected {
		how(c.rdma)
	}
}

// isGone reports whether no further completion can arrive.
func (c *connection) isGone() bool { return c.disconnected || c.rdma == nil && c.closed }

// failure describes a completion that ends the connection.
func (c *connection) failure(completion *rdma.Completion) error {
	if c.rdma != nil {
		if err := c.rdma.Err(); err != nil {
			return fmt.Errorf("%v connection: %w", c.role, err)
		}
	}
	if completion.Opcode == rdma.OpDisconnected || completion.Status == rdma.StatusFlushed {
		return status.Errorf(status.ConnectionReset, "the peer closed the %v connection", c.role)
	}
	return status.Errorf(completion.Status.Code(), "%v on the %v connection failed: %v",
		completion.Opcode, c.role, completion.Status)
}
