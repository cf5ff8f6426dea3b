package datapath

import (
	"errors"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// spareMessages is the room, beyond the depth, for messages that are not IOs: hello and stop, in
// both directions.
const spareMessages = 4

// receiveBatch is how many consumed receives are posted again at once.
const receiveBatch = 32

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

// connection is one of a lane's two RDMA connections, with what the lane is about to send on it and
// the receives that the lane posts. It belongs to the worker's thread.
type connection struct {
	role     iomsg.ConnectionRole
	rdma     rdma.Connection // nil until it is established
	messages *messageMemory
	send     sendGather

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
		connections[role].messages, connections[role].send.memory = messages, messages
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
		c.send = newSendGather(next, depth)
		c.firstReceive = c.send.end()
		next = c.firstReceive + c.receives*c.receiveSize
	}
	return connections, int(next)
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

// sendHello gathers this side's hello, which announces how many bytes of messages it accepts in one
// Send.
func (c *connection) sendHello() {
	hello := iomsg.Message{Type: iomsg.Hello, IOSize: c.receiveSize * iomsg.Size}
	iomsg.Encode(c.send.addMessage()[:], &hello)
}

// receiveHello makes the connection ready for messages.
func (c *connection) receiveHello(m *iomsg.Message) {
	c.ready = true
	c.send.limit = min(max(m.IOSize/iomsg.Size, 1), messagesPerSend)
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

// postGathered posts what the lane has gathered. It posts the receives first: a response allows the
// peer another request, which needs a posted receive.
func (c *connection) postGathered() error {
	requests := c.send.finish()
	if len(requests) == 0 {
		return nil
	}
	if err := c.postReceives(); err != nil {
		return err
	}
	return c.post(requests)
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

// message is an encoded IO message in memory that no peer can change.
type message = [iomsg.Size]byte

// messageMemory is registered memory for a fixed number of IO messages.
type messageMemory struct {
	region     *memory.Region
	registered rdma.MemoryRegion
	bytes      []byte
	first      rdma.Segment // names message 0
}

func newMessageMemory(domain rdma.ProtectionDomain, count int) (*messageMemory, error) {
	region, err := memory.Alloc("zc-relay messages", uint64(count*iomsg.Size))
	if err != nil {
		return nil, fmt.Errorf("allocate memory for %d messages: %w", count, err)
	}
	if err := region.Prefault(); err != nil {
		return nil, errors.Join(err, region.Close())
	}
	registered, err := domain.Register(region, memory.LocalWrite)
	if err != nil {
		return nil, errors.Join(
			fmt.Errorf("register memory for %d messages: %w", count, err), region.Close())
	}
	return &messageMemory{
		region: region, registered: registered, bytes: region.Bytes(),
		first: rdma.Segment{
			Key: registered.LocalKey(), Length: iomsg.Size, Address: registered.Base(),
		},
	}, nil
}

// at returns the memory of message i.
func (m *messageMemory) at(i uint32) *message {
	return (*message)(m.bytes[i*iomsg.Size:][:iomsg.Size])
}

// segment names message i in a work request.
func (m *messageMemory) segment(i uint32) rdma.Segment {
	s := m.first
	s.Address += uint64(i) * iomsg.Size
	return s
}

func (m *messageMemory) close() error {
	return errors.Join(m.registered.Deregister(), m.region.Close())
}
