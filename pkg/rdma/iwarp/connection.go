// SPDX-License-Identifier: Apache-2.0

package iwarp

import (
	"fmt"
	"syscall"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/fifo"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/softrdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// connection is one end of an established stream. It belongs to the thread of its completion queue.
type connection struct {
	softrdma.Endpoint[connection, struct{}]
	queue  *completionQueue
	socket socket
	useCRC bool
	// copyTrusted and copyUntrusted say from which memory payloads are copied before they are sent.
	copyTrusted   bool
	copyUntrusted bool

	responses   fifo.Queue[readResponse] // due, in the order of the requests
	reads       readRequester
	transmitter transmitter
	receiver    receiver
}

// handshakeResult is what the handshake passes on to the connection.
type handshakeResult struct {
	socket     socket
	parameters rdma.Parameters
	useCRC     bool
	// awaitsPeer is set if this side must not send before the peer's first frame has arrived.
	awaitsPeer   bool
	sentRead     bool // the handshake has sent the first Read Request
	receivedRead bool // the handshake has received the peer's first Read Request
}

// newConnection checks config and makes a connection that is not established yet. The connection
// holds a reference to its protection domain; a caller that discards the connection must release
// the reference.
func newConnection(d *device, config *rdma.ConnectionConfig) (*connection, error) {
	c := &connection{socket: noSocket}
	var shared *softrdma.Queue[connection]
	if q, ok := config.Queue.(*completionQueue); ok && q.device == d {
		c.queue, shared = q, &q.Queue
	}
	return c, c.Open(c, &d.Device, shared, config)
}

// establish sets up the data path and attaches the connection to its queue.
func (c *connection) establish(e handshakeResult) error {
	c.socket, c.Agreed, c.useCRC = e.socket, e.parameters, e.useCRC
	// The peer was granted at least one inbound Read, see wireDepth.
	c.responses = fifo.New[readResponse](max(e.parameters.InboundReads, 1))
	c.reads = newReadRequester(e.parameters.OutboundReads)
	c.ReadLimit = uint32(e.parameters.OutboundReads)
	c.transmitter = newTransmitter(e)
	c.receiver = newReceiver(e)
	// A source must not change after its CRC has been computed. If this side asks for CRCs, callers
	// have been told so, but the owner of untrusted memory has not.
	c.copyTrusted = e.useCRC && !c.queue.device.options.CRC
	// Only system calls can read untrusted memory in place, and TLS, which copies it under a guard.
	c.copyUntrusted = e.useCRC || e.socket.stream != nil && e.socket.tls == nil
	if c.copyUntrusted {
		c.transmitter.batch.stable = make([]byte, stableBytes)
	}
	c.transmitter.measure(&c.socket)
	if err := c.Attach(); err != nil {
		c.socket.close()
		return err
	}
	return nil
}

// Close ends the connection at once. The peer sees an orderly end if it is between messages.
func (c *connection) Close() {
	if c.HasArrived() {
		c.queue.processInbox()
	}
	if c.Phase == softrdma.PhaseOpen {
		c.end(nil, rdma.StatusFlushed)
	}
}

// Reset ends the connection at once with a TCP reset, which takes the place of what is still in the
// socket's queue.
func (c *connection) Reset() {
	c.Aborted.Store(true)
	c.Close()
}

// peerClosed handles the peer's FIN or, with TLS, its farewell. Between messages it is an orderly
// end.
func (c *connection) peerClosed() {
	if t := c.socket.tls; t != nil && !t.ended {
		c.end(status.Errorf(status.ConnectionReset, "connection to %v: %w", c.Agreed.Remote,
			errTruncated), rdma.StatusFlushed)
		return
	}
	if c.receiver.atBoundary() {
		c.end(nil, rdma.StatusFlushed)
		return
	}
	c.end(status.Errorf(status.ConnectionReset,
		"connection to %v: stream ended inside a message", c.Agreed.Remote), rdma.StatusFlushed)
}

// peerTerminated handles a Terminate sent by the peer.
func (c *connection) peerTerminated(e TerminateError) {
	err := status.Errorf(e.status(), "connection to %v: %w", c.Agreed.Remote, &e)
	outcome := rdma.StatusFlushed
	if q := &c.Sends; q.Head != q.Tail && q.At(q.Head).Opcode == rdma.OpRead {
		outcome = e.readStatus()
	}
	c.end(err, outcome)
}

// fail ends the connection and sends the peer a Terminate with the reason.
func (c *connection) fail(v *violation) {
	if c.Phase != softrdma.PhaseOpen {
		return
	}
	// Make one attempt. The Terminate must follow a whole FPDU, so it cannot be sent if the batch
	// may have been cut off inside one. With TLS, all of it may be in records that are held back.
	if b := &c.transmitter.batch; !b.partlySent || b.empty() {
		b.reset()
		b.addFrame(appendTerminate(b.frame(), v, c.receiver.header[:], c.useCRC))
		_, _ = c.socket.send(&b.gather, false)
	}
	err := v.err()
	err = status.Errorf(status.CodeOf(err), "connection to %v: %w", c.Agreed.Remote, err)
	if v == violationTooLong {
		c.FlushReceives(rdma.StatusLocalLength)
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
		if c.Phase != softrdma.PhaseOpen {
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
		c.Agreed.Remote, fmt.Errorf("tcp: %w", cause)), outcome)
}

// end closes the socket and completes all posted requests: the oldest request of the send queue
// with outcome, all others as flushed. OpDisconnected follows once the caller has polled those
// completions. cause is nil if the end is orderly.
func (c *connection) end(cause error, outcome rdma.CompletionStatus) {
	c.SetErr(cause)
	if cause != nil {
		c.queue.device.options.Logger.Info("connection lost",
			zap.Stringer("remote", c.Agreed.Remote), zap.Error(cause))
	}
	c.Phase = softrdma.PhaseEnded
	c.queue.poller.remove(&c.socket, c.Slot) // before the socket is closed
	c.Leave()
	if c.Aborted.Load() {
		c.socket.reset()
	} else {
		c.socket.close()
	}
	c.transmitter.batch.reset()
	c.FlushSends(outcome)
	c.FlushReceives(rdma.StatusFlushed)
}
