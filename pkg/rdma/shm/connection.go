// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/fifo"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/registration"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/softrdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// connection is one end of an established connection. It belongs to the thread of its completion
// queue.
type connection struct {
	softrdma.Endpoint[connection, lentWork]
	queue *completionQueue
	// hungUp is set once the socket has ended.
	hungUp bool

	bell bell
	own  outbox
	peer outbox
	// lent is what this side lends, borrowed what the peer lends.
	lent     []lentMemory
	borrowed []borrowedMemory

	responses fifo.Queue[readResponse] // due, in the order of the requests
	// reads are the Reads of this side that the peer has been asked for, by their indices in the
	// send queue. Responses arrive in the same order.
	reads fifo.Queue[uint32]

	cursors
	sent         uint32 // bytes of the request at Sends.Next that are under way
	received     uint32 // bytes of the message in Receives.Head
	readReceived uint32 // bytes of the data of the oldest of reads
	ahead        []byte // what is probably copied after the record that is being handled
	rungFor      uint64 // the peer's sleep that this side has ended last
}

// lentMemory is memory that this side lends.
type lentMemory struct {
	region   *registration.Region
	writable bool
}

// borrowedMemory is memory that the peer lends.
type borrowedMemory struct {
	offer  lentOffer
	memory *memory.Region
}

// newConnection checks config and makes a connection that is not established yet. The connection
// holds a reference to its protection domain; a caller that discards the connection must call
// discard.
func newConnection(d *device, config *rdma.ConnectionConfig) (*connection, error) {
	c := &connection{bell: bell{descriptor: -1}}
	var shared *softrdma.Queue[connection]
	if q, ok := config.Queue.(*completionQueue); ok && q.device == d {
		c.queue, shared = q, &q.Queue
	}
	if err := c.Open(c, &d.Device, shared, config); err != nil {
		return nil, err
	}
	var err error
	if c.own, err = newOutbox(); err != nil {
		c.Domain.Release()
		return nil, err
	}
	return c, nil
}

// lend returns what this side offers to lend, with the descriptors to pass: the outbox first. It
// leaves out what cannot be lent, whose data then passes through the ring.
func (c *connection) lend(list []rdma.LentMemory) ([]lentOffer, []int, error) {
	descriptors := []int{c.own.region.Descriptor()}
	var offers []lentOffer
	for _, l := range list {
		region, ok := l.Region.(*registration.Region)
		if !ok || region.Domain() != c.Domain {
			return nil, nil, status.Errorf(status.InvalidValue,
				"lent memory is not registered in the connection's protection domain")
		}
		if !canLend(region.Memory(), l.Writable) {
			continue
		}
		c.lent = append(c.lent, lentMemory{region, l.Writable})
		offers = append(offers, lentOffer{key: region.RemoteKey(), length: region.Len(),
			writable: l.Writable})
		descriptors = append(descriptors, region.Memory().Descriptor())
	}
	return offers, descriptors, nil
}

// adopt maps what the peer has sent. It takes ownership of the descriptors.
func (c *connection) adopt(p *packet, descriptors []int) error {
	defer func() { closeAll(descriptors) }()
	var err error
	if c.peer, err = importOutbox(descriptors[0]); err != nil {
		return err
	}
	descriptors = descriptors[1:]
	for _, offer := range p.lent {
		region, err := importLent(descriptors[0], offer)
		if err != nil {
			return err
		}
		descriptors = descriptors[1:]
		c.borrowed = append(c.borrowed, borrowedMemory{offer, region})
	}
	return nil
}

// establish sets up the data path and attaches the connection to its queue. It takes ownership of
// the socket.
func (c *connection) establish(socket int, parameters rdma.Parameters) error {
	c.bell.descriptor, c.Agreed = socket, parameters
	if err := c.own.region.CloseDescriptor(); err != nil { // the peer has it
		return status.Errorf(status.OperatingSystem, "close the outbox's descriptor: %w", err)
	}
	c.responses = fifo.New[readResponse](parameters.InboundReads)
	c.reads = fifo.New[uint32](parameters.OutboundReads)
	c.ReadLimit = uint32(parameters.OutboundReads)
	return c.Attach()
}

// discard releases a connection that has not been attached to its queue.
func (c *connection) discard() {
	if c.bell.descriptor >= 0 {
		c.bell.close()
	}
	_ = c.unmap()
	c.Domain.Release()
}

// unmap releases the outboxes and what the peer lends.
func (c *connection) unmap() error {
	var errs []error
	for _, b := range c.borrowed {
		errs = append(errs, b.memory.Close())
	}
	for _, o := range []*outbox{&c.own, &c.peer} {
		if o.region != nil {
			errs = append(errs, o.region.Close())
		}
		*o = outbox{}
	}
	c.borrowed = nil
	return errors.Join(errs...)
}

// Close ends the connection at once.
func (c *connection) Close() {
	if c.HasArrived() {
		c.queue.processInbox()
	}
	if c.Phase == softrdma.PhaseOpen {
		c.end(endingOrderly, nil, rdma.StatusFlushed)
	}
}

// fail ends the connection because of what the peer has done, or what has become of memory.
func (c *connection) fail(reason ending, format string, arguments ...any) {
	if c.Phase != softrdma.PhaseOpen {
		return
	}
	code := status.IOFailed
	switch reason {
	case endingAccess:
		code = status.NotPermitted
	case endingProtocol:
		code = status.Unexpected
	}
	c.end(reason, status.Errorf(code, "connection to %v: %s", c.Agreed.Remote,
		fmt.Sprintf(format, arguments...)), rdma.StatusFlushed)
}

// peerEnded handles the end of the connection by the peer, once everything that the peer has sent
// before has been received.
func (c *connection) peerEnded(reason ending) {
	remote, outcome := c.Agreed.Remote, rdma.StatusFlushed
	oldest := c.Sends.Head != c.Sends.Tail
	switch reason {
	case endingOrderly:
		c.end(endingOrderly, nil, outcome)
		return
	case endingAccess:
		if oldest && c.Sends.At(c.Sends.Head).Opcode != rdma.OpSend {
			outcome = rdma.StatusRemoteAccess
		}
		c.end(reason, status.Errorf(status.NotPermitted,
			"connection to %v: the peer denied access to its memory", remote), outcome)
	case endingReceive, endingProtocol, endingMemory:
		if oldest {
			outcome = rdma.StatusRemoteOperation
		}
		c.end(reason, status.Errorf(status.IOFailed, "connection to %v: the peer ended it: %v",
			remote, reason), outcome)
	case endingNone:
		c.end(endingAborted, status.Errorf(status.ConnectionReset,
			"connection to %v: the peer's process ended it without a reason, or died", remote),
			outcome)
	default:
		c.end(endingAborted, status.Errorf(status.ConnectionReset,
			"connection to %v: the peer aborted it", remote), outcome)
	}
}

// String describes why a peer has ended a connection.
func (e ending) String() string {
	switch e {
	case endingOrderly:
		return "an orderly end"
	case endingAborted:
		return "aborted"
	case endingProtocol:
		return "a violation of the protocol"
	case endingAccess:
		return "no access to its memory"
	case endingReceive:
		return "it had posted no receive that a message fits"
	case endingMemory:
		return "memory was taken away while in use"
	}
	return "unknown"
}

// end ends the connection and completes all posted requests: the oldest request of the send queue
// with outcome, all others as flushed. OpDisconnected follows once the caller has polled those
// completions. cause is nil if the end is orderly.
func (c *connection) end(reason ending, cause error, outcome rdma.CompletionStatus) {
	c.SetErr(cause)
	if cause != nil {
		c.queue.device.options.Logger.Info("connection lost",
			zap.Stringer("remote", c.Agreed.Remote), zap.Error(cause))
	}
	c.publish()
	c.own.header.ended.Store(uint64(reason))
	c.Phase = softrdma.PhaseEnded
	c.queue.remove(c)
	c.bell.close()
	c.queue.held.ReleaseAll()
	if err := c.unmap(); err != nil {
		c.queue.device.options.Logger.Error("cannot release a connection", zap.Error(err))
	}
	c.FlushSends(outcome)
	c.FlushReceives(rdma.StatusFlushed)
}
