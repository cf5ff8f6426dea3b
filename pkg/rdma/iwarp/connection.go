package iwarp

import (
	"fmt"
	"sync/atomic"
	"syscall"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/fifo"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/connections"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/registration"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/softrdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/workqueue"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// connection is one end of an established stream. It belongs to the thread of its completion queue,
// except the atomic fields, and parameters, which never changes.
type connection struct {
	socket     socket
	queue      *completionQueue
	domain     *registration.Domain
	context    uint64
	parameters rdma.Parameters
	useCRC     bool
	// copyTrusted and copyUntrusted say from which memory payloads are copied before they are sent.
	copyTrusted   bool
	copyUntrusted bool

	phase phase
	slot  int32 // identifies the connection to the queue's poller
	// scheduled is set while the connection is in its queue's list of connections to transmit.
	scheduled bool
	sharing   connections.Member

	sends       sendQueue
	receives    workqueue.Queue[receiveWork]
	responses   fifo.Queue[readResponse] // due, in the order of the requests
	reads       readRequester
	slotsToFree uint32 // send slots that polling the next completion frees

	transmitter transmitter
	receiver    receiver

	aborted atomic.Bool
	failure atomic.Pointer[error] // why the connection ended, nil if orderly
}

// phase is a step in the life of a connection.
type phase uint8

const (
	phaseOpen     phase = iota
	phaseEnded          // the socket is closed, OpDisconnected has not been polled
	phaseDetached       // OpDisconnected has been polled
)

// handshakeResult is what the handshake passes on to the connection.
type handshakeResult struct {
	socket     socket
	parameters rdma.Parameters
	useCRC     bool
	initiator  bool
	rtr        readyToReceive // the first frame, which the handshake has exchanged
	probed     bool           // the handshake has sent the first Read Request
}

// newConnection checks config and makes a connection that is not established yet. The connection
// holds a reference to its protection domain; a caller that discards the connection must release
// the reference.
func newConnection(d *device, config *rdma.ConnectionConfig) (*connection, error) {
	domain, queue, err := d.checkConfig(config)
	if err != nil {
		return nil, err
	}
	c := &connection{
		socket: noSocket, queue: queue, domain: domain, context: config.Context,
		sends:    sendQueue{Queue: workqueue.NewQueue[sendWork](config.SendRequests)},
		receives: workqueue.NewQueue[receiveWork](config.ReceiveRequests),
	}
	if err := c.PostReceive(config.Receives); err != nil {
		return nil, err
	}
	if !domain.Acquire() {
		return nil, status.Errorf(status.BadState, "protection domain is closed")
	}
	return c, nil
}

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

// establish sets up the data path and attaches the connection to its queue.
func (c *connection) establish(e handshakeResult) error {
	c.socket, c.parameters, c.useCRC = e.socket, e.parameters, e.useCRC
	// The peer was granted at least one inbound Read, see wireDepth.
	c.responses = fifo.New[readResponse](wireDepth(e.parameters.InboundReads))
	c.reads = newReadRequester(e.parameters.OutboundReads)
	c.transmitter = newTransmitter(e)
	c.receiver = newReceiver(e)
	// A source must not change after its CRC has been computed. If this side asks for CRCs, callers
	// have been told so, but the owner of untrusted memory has not. Only system calls can read
	// untrusted memory in place.
	c.copyTrusted = e.useCRC && !c.queue.device.options.CRC
	c.copyUntrusted = e.useCRC || e.socket.stream != nil
	if c.copyUntrusted {
		c.transmitter.batch.stable = make([]byte, stableBytes)
	}
	c.transmitter.measure(&c.socket)
	c.slot = connections.Unassigned
	if err := c.queue.connections.Attach(c); err != nil {
		c.socket.close()
		return err
	}
	return nil
}

// member returns the connection's part in its queue's fairness.
func (c *connection) member() *connections.Member { return &c.sharing }

// Parameters returns what both sides agreed on. Any goroutine may call it.
func (c *connection) Parameters() rdma.Parameters { return c.parameters }

// Err returns why the connection ended. Any goroutine may call it.
func (c *connection) Err() error {
	if err := c.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// Abort has the queue's thread end the connection with a TCP reset. Any goroutine may call it.
func (c *connection) Abort() {
	if !c.aborted.Swap(true) {
		c.queue.connections.Notify()
	}
}

// Close ends the connection at once. The peer sees an orderly end if it is between messages.
func (c *connection) Close() {
	if c.slot == connections.Unassigned {
		c.queue.processInbox()
	}
	if c.phase == phaseOpen {
		c.end(nil, rdma.StatusFlushed)
	}
}

// Reset ends the connection at once with a TCP reset, which takes the place of what is still in the
// socket's queue.
func (c *connection) Reset() {
	c.aborted.Store(true)
	c.Close()
}

// peerClosed handles the peer's FIN. Between messages it is an orderly end.
func (c *connection) peerClosed() {
	if c.receiver.atBoundary() {
		c.end(nil, rdma.StatusFlushed)
		return
	}
	c.end(status.Errorf(status.ConnectionReset,
		"connection to %v: stream ended inside a message", c.parameters.Remote), rdma.StatusFlushed)
}

// peerTerminated handles a Terminate sent by the peer.
func (c *connection) peerTerminated(e TerminateError) {
	err := status.Errorf(e.status(), "connection to %v: %w", c.parameters.Remote, &e)
	outcome := rdma.StatusFlushed
	if q := &c.sends; q.Head != q.Tail && q.At(q.Head).opcode == rdma.OpRead {
		outcome = e.readStatus()
	}
	c.end(err, outcome)
}

// fail ends the connection and sends the peer a Terminate with the reason.
func (c *connection) fail(v *violation) {
	if c.phase != phaseOpen {
		return
	}
	// Make one attempt. The Terminate must follow a whole FPDU, so it cannot be sent if the batch
	// may have been cut off inside one.
	if b := &c.transmitter.batch; !b.partlySent {
		b.reset()
		b.addFrame(appendTerminate(b.frame(), v, c.receiver.header[:], c.useCRC))
		_, _ = c.socket.send(&b.gather)
	}
	err := v.err()
	err = status.Errorf(status.CodeOf(err), "connection to %v: %w", c.parameters.Remote, err)
	if v == violationTooLong {
		c.flushReceives(rdma.StatusLocalLength)
	}
	c.end(err, rdma.StatusFlushed)
}

// maxReadsAfterError bounds the reads of input that arrived before an error.
const maxReadsAfterError = 64

// tcpFailed handles an error that TCP reports. It first processes the input that arrived before the
// error, which may be a Terminate with the actual reason.
func (c *connection) tcpFailed(cause errno) {
	for range maxReadsAfterError {
		n, _, err := c.receiveOnce(stagingBytes)
		if c.phase != phaseOpen {
			return
		}
		if n == 0 && err == 0 && cause == syscall.EPIPE {
			// Linux reports a reset as EPIPE if the peer's FIN preceded it. So the peer's end was
			// orderly, although this side was still sending.
			c.peerClosed()
			return
		}
		if n == 0 && err != syscall.ECONNRESET {
			break
		}
	}
	code, outcome := status.ConnectionReset, rdma.StatusFlushed
	if cause == syscall.ETIMEDOUT || cause == syscall.EHOSTUNREACH || cause == syscall.ENETUNREACH {
		code, outcome = status.TimeOut, rdma.StatusRetryExceeded
	}
	c.end(status.Errorf(code, "connection to %v was lost: %w",
		c.parameters.Remote, fmt.Errorf("tcp: %w", cause)), outcome)
}

// end closes the socket and completes all posted requests: the oldest request of the send queue
// with outcome, all others as flushed. OpDisconnected follows once the caller has polled those
// completions. cause is nil if the end is orderly.
func (c *connection) end(cause error, outcome rdma.CompletionStatus) {
	if cause != nil {
		c.failure.Store(&cause)
		c.queue.device.options.Logger.Info("connection lost",
			zap.Stringer("remote", c.parameters.Remote), zap.Error(cause))
	}
	c.phase = phaseEnded
	c.queue.remove(c)
	if c.aborted.Load() {
		c.socket.reset()
	} else {
		c.socket.close()
	}
	c.transmitter.batch.reset()
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
