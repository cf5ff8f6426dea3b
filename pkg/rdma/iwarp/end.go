package iwarp

import (
	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// fail ends the connection and tells the peer why by a Terminate.
func (c *connection) fail(v *violation) {
	if c.phase != phaseOpen {
		return
	}
	c.sendTerminate(v)
	err := v.err()
	err = status.Errorf(status.CodeOf(err), "connection to %v: %w", c.parameters.Remote, err)
	if v == violationTooLong {
		c.flushReceives(rdma.StatusLocalLength)
	}
	c.end(err, rdma.StatusFlushed)
}

// sendTerminate makes one attempt. The message must follow a whole FPDU, so
// there can be none while one is half sent.
func (c *connection) sendTerminate(v *violation) {
	t := &c.transmitter
	if t.batch.torn {
		return
	}
	t.batch.reset()
	t.batch.addFrame(appendTerminate(t.batch.frame(), v, c.receiver.header[:], c.useCRC))
	_, _ = c.socket.send(&t.batch.gather)
}

// terminated handles a Terminate of the peer.
func (c *connection) terminated(e TerminateError) {
	err := status.Errorf(e.status(), "connection to %v: %w", c.parameters.Remote, &e)
	outcome := rdma.StatusFlushed
	if q := &c.sends; q.head != q.tail && q.at(q.head).opcode == rdma.OpRead {
		outcome = e.readStatus()
	}
	c.end(err, outcome)
}

// end closes the socket and flushes what was posted. outcome is that of the
// oldest request in the send queue, all others are flushed. OpDisconnected
// follows when the caller has collected them.
func (c *connection) end(cause error, outcome rdma.CompletionStatus) {
	if cause != nil {
		c.failure.Store(&cause)
		c.queue.device.options.Logger.Info("connection lost",
			zap.Stringer("remote", c.parameters.Remote), zap.Error(cause))
	}
	c.phase = phaseEnded
	c.queue.release(c)
	if c.aborted.Load() {
		c.socket.reset()
	} else {
		c.socket.close()
	}
	c.transmitter.batch.reset()
	c.flushSends(outcome)
	c.flushReceives(rdma.StatusFlushed)
}

// flushSends completes all requests of the send queue: the first with the
// given outcome, the others as flushed.
func (c *connection) flushSends(first rdma.CompletionStatus) {
	for q := &c.sends; q.head != q.tail; {
		c.completeSend(q.at(q.head), first)
		first = rdma.StatusFlushed
	}
}

// flushReceives does the same for the receive queue.
func (c *connection) flushReceives(first rdma.CompletionStatus) {
	for q := &c.receives; q.head != q.tail; {
		c.completeReceive(q.at(q.head), 0, first)
		first = rdma.StatusFlushed
	}
}
