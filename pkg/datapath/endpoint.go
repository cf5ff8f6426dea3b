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
	receiveWork  workKind = iota // a posted receive; index of its message memory
	messageWork                  // a Send; index of the message or transaction
	helloWork                    // the Send of a hello
	transferWork                 // a Write or Read of data; index of the transaction
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

// endpoint is one RDMA connection of a lane with its receives. It belongs to
// the worker's thread.
type endpoint struct {
	role       connectionRole
	connection rdma.Connection
	messages   *messageMemory
	// firstReceive is where this endpoint's receives begin in messages, and
	// receives is their number.
	firstReceive uint32
	receives     uint32

	replenish      [replenishBatch]rdma.ReceiveRequest
	replenishCount int
	unflushed      bool

	ready        bool // the hello has been exchanged
	closed       bool // this side has closed it
	disconnected bool // its last completion has been seen
}

// initialReceives are the receives to post before the connection exists.
func (e *endpoint) initialReceives() []rdma.ReceiveRequest {
	requests := make([]rdma.ReceiveRequest, e.receives)
	for i := range requests {
		index := e.firstReceive + uint32(i)
		requests[i] = rdma.ReceiveRequest{ID: workID(receiveWork, index), Local: e.messages.segment(index)}
	}
	return requests
}

// take copies a received message out and hands its receive back, in this
// order, so that nothing that follows from the message can overtake the
// receive.
func (e *endpoint) take(index uint32, into *message) error {
	*into = *e.messages.at(index)
	e.replenish[e.replenishCount] = rdma.ReceiveRequest{
		ID: workID(receiveWork, index), Local: e.messages.segment(index),
	}
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

// checkMessage refuses a received message that is not an IO message.
func checkMessage(role connectionRole, c *rdma.Completion) error {
	if c.Length != iomsg.Size {
		return status.Errorf(status.InvalidValue,
			"%v connection: received a message of %d bytes instead of %d", role, c.Length, iomsg.Size)
	}
	return nil
}
