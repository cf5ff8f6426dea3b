package datapath

import (
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Work request ids carry what the request was for and the index of the
// message or transaction it belongs to.
type workKind uint8

const (
	receiveWork  workKind = iota // a posted receive; index of its first message
	messageWork                  // what outgoing has gathered; the position to release
	transferWork                 // a Read of data; index of the transaction
)

const workKindShift = 56

func workID(kind workKind, index uint32) uint64 {
	return uint64(kind)<<workKindShift | uint64(index)
}

func splitWorkID(id uint64) (workKind, uint32) {
	return workKind(id >> workKindShift), uint32(id)
}

// replenishBatch is how many receives are posted again at once.
const replenishBatch = 32

// endpoint is one RDMA connection of a lane: what it sends, and its receives.
// It belongs to the worker's thread.
type endpoint struct {
	role       iomsg.ConnectionRole
	connection rdma.Connection
	messages   *messageMemory
	out        outgoing
	// firstReceive is where this endpoint's receives begin in messages;
	// receives is their number, receiveSize that of messages in each.
	firstReceive uint32
	receives     uint32
	receiveSize  uint32

	replenish      [replenishBatch]rdma.ReceiveRequest
	replenishCount int
	unflushed      bool

	ready        bool // the hello has been exchanged
	closed       bool // this side has closed it
	disconnected bool // its last completion has been seen
}

// newEndpoints makes the endpoints of a lane of a depth, and the memory of
// their messages. On either connection as many messages as the depth, its
// hello and stop can come in Sends of their own.
func newEndpoints(domain rdma.ProtectionDomain, depth int) (endpoints [iomsg.ConnectionRoleCount]endpoint, messages *messageMemory, err error) {
	receives := uint32(depth + spareMessages)
	next := uint32(0)
	for role := range iomsg.ConnectionRoleCount {
		e := &endpoints[role]
		e.role, e.receives, e.receiveSize = role, receives, receiveSizeOf(role)
		e.out = newOutgoing(next, depth)
		e.firstReceive = e.out.end()
		next = e.firstReceive + receives*e.receiveSize
	}
	if messages, err = newMessageMemory(domain, int(next)); err != nil {
		return endpoints, nil, err
	}
	for role := range iomsg.ConnectionRoleCount {
		endpoints[role].messages, endpoints[role].out.memory = messages, messages
	}
	return endpoints, messages, nil
}

// receiveSizeOf is how many messages one Send of the peer may carry. Those on
// control connections are rare.
func receiveSizeOf(role iomsg.ConnectionRole) uint32 {
	if role == iomsg.DataConnection {
		return messagesPerSend
	}
	return 1
}

// receive names the memory of a receive by the index of its first message.
func (e *endpoint) receive(first uint32) rdma.ReceiveRequest {
	local := e.messages.segment(first)
	local.Length = e.receiveSize * iomsg.Size
	return rdma.ReceiveRequest{ID: workID(receiveWork, first), Local: local}
}

// initialReceives are the receives to post before the connection exists.
func (e *endpoint) initialReceives() []rdma.ReceiveRequest {
	requests := make([]rdma.ReceiveRequest, e.receives)
	for i := range requests {
		requests[i] = e.receive(e.firstReceive + uint32(i)*e.receiveSize)
	}
	return requests
}

// hello gathers this side's hello, which says how large a Send it takes.
func (e *endpoint) hello() {
	iomsg.Encode(e.out.message()[:], &iomsg.Message{Type: iomsg.Hello, IOSize: e.receiveSize * iomsg.Size})
}

// greeted takes the peer's hello.
func (e *endpoint) greeted(m *iomsg.Message) {
	e.ready = true
	e.out.limit = min(max(m.IOSize/iomsg.Size, 1), messagesPerSend)
}

// received returns the index of the first message of a received Send, and
// their number.
func (e *endpoint) received(c *rdma.Completion) (first, count uint32, err error) {
	_, first = splitWorkID(c.ID)
	if c.Length == 0 || c.Length%iomsg.Size != 0 {
		return 0, 0, status.Errorf(status.InvalidValue,
			"%v connection: received a Send of %d bytes, which is not a number of %d-byte messages", e.role, c.Length, iomsg.Size)
	}
	return first, c.Length / iomsg.Size, nil
}

// giveBack hands a receive back whose messages have been dealt with.
func (e *endpoint) giveBack(first uint32) error {
	e.replenish[e.replenishCount] = e.receive(first)
	if e.replenishCount++; e.replenishCount == replenishBatch {
		return e.postReceives()
	}
	return nil
}

// postReceives hands all taken receives back.
func (e *endpoint) postReceives() error {
	if e.replenishCount == 0 || e.connection == nil {
		return nil // before the connection is attached nothing but its hello arrives
	}
	requests := e.replenish[:e.replenishCount]
	e.replenishCount = 0
	if e.closed {
		return nil
	}
	e.unflushed = true
	if err := e.connection.PostReceive(requests); err != nil {
		return fmt.Errorf("post %d receives on the %v connection: %w", len(requests), e.role, err)
	}
	return nil
}

// postGathered posts what has been gathered. Receives go before it: an answer
// must not be overtaken by the receive that the next request needs.
func (e *endpoint) postGathered() error {
	requests := e.out.take()
	if len(requests) == 0 {
		return nil
	}
	if err := e.postReceives(); err != nil {
		return err
	}
	return e.post(requests)
}

// post posts a chain of requests.
func (e *endpoint) post(requests []rdma.SendRequest) error {
	e.unflushed = true
	if err := e.connection.PostSend(requests); err != nil {
		return fmt.Errorf("post %d requests on the %v connection: %w", len(requests), e.role, err)
	}
	return nil
}

func (e *endpoint) flush() {
	if e.unflushed && e.connection != nil && !e.closed {
		e.connection.Flush()
	}
	e.unflushed = false
}

// close ends the connection; its requests complete as flushed later.
func (e *endpoint) close() {
	if e.closed {
		return
	}
	e.closed = true
	if e.connection != nil && !e.disconnected {
		e.connection.Close()
	}
}

// gone reports whether no completion can come any more.
func (e *endpoint) gone() bool {
	return e.disconnected || (e.connection == nil && e.closed)
}

// failure describes a completion that ends the connection.
func (e *endpoint) failure(c *rdma.Completion) error {
	if e.connection != nil {
		if err := e.connection.Err(); err != nil {
			return fmt.Errorf("%v connection: %w", e.role, err)
		}
	}
	if c.Opcode == rdma.OpDisconnected {
		return status.Errorf(status.ConnectionReset, "%v connection was closed by the peer", e.role)
	}
	return status.Errorf(c.Status.Code(), "%v on the %v connection failed: %v", c.Opcode, e.role, c.Status)
}
