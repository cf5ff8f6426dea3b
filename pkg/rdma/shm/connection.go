package shm

import (
	"errors"
	"fmt"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/fifo"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/connections"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/registration"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/softrdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/workqueue"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// connection is one end of an established connection. It belongs to the thread of its completion
// queue, except the atomic fields, and parameters, which never changes.
type connection struct {
	queue      *completionQueue
	domain     *registration.Domain
	context    uint64
	parameters rdma.Parameters

	phase phase
	slot  int32 // identifies the connection to the queue's poller
	// scheduled is set while the connection is in its queue's list of connections to transmit.
	scheduled bool
	sharing   connections.Member
	// hungUp is set once the socket has ended.
	hungUp bool

	bell bell
	own  outbox
	peer outbox
	// lent is what this side lends, borrowed what the peer lends.
	lent     []lentMemory
	borrowed []borrowedMemory

	sends       workqueue.Queue[sendWork]
	receives    workqueue.Queue[receiveWork]
	responses   fifo.Queue[readResponse] // due, in the order of the requests
	reads       reads
	slotsToFree uint32 // send slots that polling the next completion frees

	tail         uint64 // of the own ring: bytes written
	published    uint64 // what the peer has been told of tail
	peerConsumed uint64 // bytes of the own ring that the peer is known to have consumed
	blockedAt    uint64 // peerConsumed when the last turn to transmit stopped
	sent         uint32 // bytes of the request at sends.Next that are under way
	position     uint64 // of the peer's ring: bytes consumed
	told         uint64 // what the peer has been told of position
	received     uint32 // bytes of the message in receives.Head
	ahead        []byte // what is probably copied after the record that is being handled
	rungFor      uint64 // the peer's sleep that this side has ended last

	aborted atomic.Bool
	failure atomic.Pointer[error] // why the connection ended, nil if orderly
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

// phase is a step in the life of a connection.
type phase uint8

const (
	phaseOpen     phase = iota
	phaseEnded          // OpDisconnected has not been polled
	phaseDetached       // OpDisconnected has been polled
)

// newConnection checks config and makes a connection that is not established yet. The connection
// holds a reference to its protection domain; a caller that discards the connection must call
// discard.
func newConnection(d *device, config *rdma.ConnectionConfig) (*connection, error) {
	domain, queue, err := d.checkConfig(config)
	if err != nil {
		return nil, err
	}
	c := &connection{
		queue: queue, domain: domain, context: config.Context,
		sends:    workqueue.NewQueue[sendWork](config.SendRequests),
		receives: workqueue.NewQueue[receiveWork](config.ReceiveRequests),
	}
	c.bell.descriptor = -1
	if err := c.PostReceive(config.Receives); err != nil {
		return nil, err
	}
	if !domain.Acquire() {
		return nil, status.Errorf(status.BadState, "protection domain is closed")
	}
	if c.own, err = newOutbox(); err != nil {
		domain.Release()
		return nil, err
	}
	return c, nil
}

// member returns the connection's part in its queue's fairness.
func (c *connection) member() *connections.Member { return &c.sharing }

// checkConfig checks config and returns its protection domain and completion queue.
func (d *device) checkConfig(
	config *rdma.ConnectionConfig,
) (*registration.Domain, *completionQueue, error) {
	domain, err := d.CheckDomain(config)
	if err != nil {
		return nil, nil, err
	}
	queue, ok := config.Queue.(*completionQueue)
	if !ok || queue.device != d {
		return nil, nil, softrdma.ErrForeignQueue
	}
	if err := d.CheckCounts(config); err != nil {
		return nil, nil, err
	}
	return domain, queue, nil
}

// lend returns what this side offers to lend, with the descriptors to pass: the outbox first. It
// leaves out what cannot be lent, whose data then passes through the ring.
func (c *connection) lend(list []rdma.LentMemory) ([]lentOffer, []int, error) {
	descriptors := []int{c.own.region.Descriptor()}
	var offers []lentOffer
	for _, l := range list {
		region, ok := l.Region.(*registration.Region)
		if !ok || region.Domain() != c.domain {
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
	c.bell.descriptor, c.parameters = socket, parameters
	if err := c.own.region.CloseDescriptor(); err != nil { // the peer has it
		return status.Errorf(status.OperatingSystem, "close the outbox's descriptor: %w", err)
	}
	c.responses = fifo.New[readResponse](parameters.InboundReads)
	c.reads = reads{outstanding: fifo.New[uint32](parameters.OutboundReads),
		limit: uint32(parameters.OutboundReads)}
	c.slot = connections.Unassigned
	return c.queue.connections.Attach(c)
}

// discard releases a connection that has not been attached to its queue.
func (c *connection) discard() {
	if c.bell.descriptor >= 0 {
		c.bell.close()
	}
	_ = c.unmap()
	c.domain.Release()
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

// Parameters returns what both sides agreed on. Any goroutine may call it.
func (c *connection) Parameters() rdma.Parameters { return c.parameters }

// Err returns why the connection ended. Any goroutine may call it.
func (c *connection) Err() error {
	if err := c.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// Abort has the queue's thread end the connection. Any goroutine may call it.
func (c *connection) Abort() {
	if !c.aborted.Swap(true) {
		c.queue.connections.Notify()
	}
}

// Close ends the connection at once.
func (c *connection) Close() {
	if c.slot == connections.Unassigned {
		c.queue.processInbox()
	}
	if c.phase == phaseOpen {
		c.end(endingOrderly, nil, rdma.StatusFlushed)
	}
}

// fail ends the connection because of what the peer has done, or what has become of memory.
func (c *connection) fail(reason ending, format string, arguments ...any) {
	if c.phase != phaseOpen {
		return
	}
	code := status.IOFailed
	switch reason {
	case endingAccess:
		code = status.NotPermitted
	case endingProtocol:
		code = status.Unexpected
	}
	c.end(reason, status.Errorf(code, "connection to %v: %s", c.parameters.Remote,
		fmt.Sprintf(format, arguments...)), rdma.StatusFlushed)
}

// peerEnded handles the end of the connection by the peer, once everything that the peer has sent
// before has been received.
func (c *connection) peerEnded(reason ending) {
	remote, outcome := c.parameters.Remote, rdma.StatusFlushed
	oldest := c.sends.Head != c.sends.Tail
	switch reason {
	case endingOrderly:
		c.end(endingOrderly, nil, outcome)
		return
	case endingAccess:
		if oldest && c.sends.At(c.sends.Head).opcode != rdma.OpSend {
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
	if cause != nil {
		c.failure.Store(&cause)
		c.queue.device.options.Logger.Info("connection lost",
			zap.Stringer("remote", c.parameters.Remote), zap.Error(cause))
	}
	c.publish()
	c.own.header.ended.Store(uint64(reason))
	c.phase = phaseEnded
	c.queue.remove(c)
	c.bell.close()
	c.queue.held.ReleaseAll()
	if err := c.unmap(); err != nil {
		c.queue.device.options.Logger.Error("cannot release a connection", zap.Error(err))
	}
	c.flushSends(outcome)
	c.flushReceives(rdma.StatusFlushed)
}

// flushSends completes all requests of the send queue: the oldest with status first, the others as
// flushed.
func (c *connection) flushSends(first rdma.CompletionStatus) {
	for q := &c.sends; q.Head != q.Tail; {
		c.completeSend(q.At(q.Head), first)
		first = rdma.StatusFlushed
	}
}

// flushReceives completes all receives in the same way.
func (c *connection) flushReceives(first rdma.CompletionStatus) {
	for q := &c.receives; q.Head != q.Tail; {
		c.completeReceive(q.At(q.Head), 0, first)
		first = rdma.StatusFlushed
	}
}

// completeSend completes the oldest request of the send queue.
func (c *connection) completeSend(w *sendWork, outcome rdma.CompletionStatus) {
	c.slotsToFree++
	c.sends.Head++
	w.region = nil
	if w.silent && outcome == rdma.StatusSuccess {
		return
	}
	*c.queue.completions.Push(&c.sends.Freed, c.slotsToFree) = rdma.Completion{
		ID: w.id, Context: c.context, Opcode: w.opcode, Status: outcome,
	}
	c.slotsToFree = 0
}

// completeReceive completes the oldest receive.
func (c *connection) completeReceive(w *receiveWork, length uint32, outcome rdma.CompletionStatus) {
	c.receives.Head++
	w.region = nil
	*c.queue.completions.Push(&c.receives.Freed, 1) = rdma.Completion{
		ID: w.id, Context: c.context, Length: length, Opcode: rdma.OpReceive, Status: outcome,
	}
}
