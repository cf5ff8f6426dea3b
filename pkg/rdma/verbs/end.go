//go:build verbs

package verbs

import (
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs/internal/ibv"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// errPeerLeft interrupts a connection whose peer has disconnected; what that
// means is found out by the queue's thread.
var errPeerLeft = errors.New("the peer has disconnected")

// errClosed is why a connection of iWARP has ended when nothing else is known.
var errClosed = status.Errorf(status.ConnectionReset, "the peer has closed the connection, or the network has")

// adopt opens a connection whose handshake has succeeded since the queue's
// thread last looked.
func (c *connection) adopt() {
	if c.phase != phaseConnecting || c.handshake.Load() != handshakeDone {
		return
	}
	c.phase = phaseOpen
	c.deliver()
	if c.broken != nil {
		c.beginEnd(c.broken)
	}
}

// heed does what another thread has asked for.
func (c *connection) heed() {
	c.adopt()
	cause := c.interruption.Load()
	if cause == nil || c.phase != phaseOpen {
		return
	}
	if errors.Is(*cause, errPeerLeft) {
		c.beginEnd(c.reasonOfPeer())
		return
	}
	c.beginEnd(*cause)
}

// reasonOfPeer tells an orderly end from a failure. A queue pair that has
// failed, although its peer only disconnected, has refused something of the
// peer's. iWARP has no orderly end: its queue pairs always fail.
func (c *connection) reasonOfPeer() error {
	if c.device.limits.Transport == ibv.IWARP {
		return errClosed
	}
	failed, err := c.qp.Failed()
	if err != nil {
		return err
	}
	if failed {
		return status.Errorf(status.ConnectionReset, "the peer has disconnected after a request of its was refused here")
	}
	return nil
}

// beginEnd stops the connection: what the device has completed is still
// collected, then the rest is flushed. cause is nil for an orderly end.
func (c *connection) beginEnd(cause error) {
	if c.phase != phaseOpen {
		return
	}
	c.phase = phaseEnding
	c.posted = c.posted[:0]
	if cause != nil {
		cause = fmt.Errorf("connection to %v: %w", c.parameters.Remote, cause)
		c.failure.Store(&cause)
		level := zap.InfoLevel
		if errors.Is(cause, errClosed) {
			level = zap.DebugLevel // most likely in order
		}
		c.device.log.Log(level, "connection lost", zap.Stringer("remote", c.parameters.Remote), zap.Error(cause))
	}
	c.queue.ending = append(c.queue.ending, c)
}

// finish destroys the queue pair, after which the device touches no memory on
// behalf of the connection, and flushes what it has not completed.
func (c *connection) finish() {
	c.endpoint.connection.Store(nil)
	c.phase = phaseEnded
	c.posted = c.posted[:0]
	c.endpoint.retire()
	c.destroyQueuePair()
	c.flushSends()
	c.flushReceives()
	c.queue.bury(c)
}

func (c *connection) destroyQueuePair() {
	if c.qp == nil {
		return
	}
	c.device.removeConnection(c.qp.Number())
	if err := c.qp.Destroy(); err != nil {
		c.device.log.Error("destroy queue pair", zap.Error(err))
	}
}

// record notes the outcome of a request that the device reports.
func (c *connection) record(index uint32, receive bool, w *ibv.Completion) {
	outcome := outcomeOf(w.Status)
	opcode, id := rdma.OpReceive, uint64(0)
	if receive {
		if !c.receives.holds(index) {
			return
		}
		c.receives.report(index, w.Length, outcome)
		id = c.receives.at(index).id
	} else {
		if !c.sends.holds(index) {
			return
		}
		c.sends.report(index, outcome)
		opcode, id = c.sends.at(index).opcode, c.sends.at(index).id
	}
	if outcome == rdma.StatusSuccess {
		return
	}
	c.fail(opcode, id, w)
}

// fail ends the connection because of a failed request. One that was merely
// flushed does not tell why; usually the connection manager is about to.
func (c *connection) fail(opcode rdma.Opcode, id uint64, w *ibv.Completion) {
	switch {
	case c.phase == phaseConnecting: // the queue pair still belongs to the handshake
		c.broken = workError(opcode, id, w)
	case c.phase != phaseOpen:
	case w.Status == ibv.WorkFlushed:
		c.beginEnd(c.reasonOfPeer())
	default:
		c.beginEnd(workError(opcode, id, w))
	}
}

// deliver queues the completions of the requests whose outcome is known.
func (c *connection) deliver() {
	for e := c.sends.next(); e != nil; e = c.sends.next() {
		c.completeSend(e)
	}
	for e := c.receives.next(); e != nil; e = c.receives.next() {
		c.completeReceive(e)
	}
}

// flushSends completes all requests of the send queue, those whose outcome is
// not known as flushed. flushReceives does the same for the receive queue.
func (c *connection) flushSends() {
	for e := c.sends.flush(); e != nil; e = c.sends.flush() {
		c.completeSend(e)
	}
}

func (c *connection) flushReceives() {
	for e := c.receives.flush(); e != nil; e = c.receives.flush() {
		c.completeReceive(e)
	}
}

func (c *connection) completeSend(e *sendEntry) {
	if e.opcode == rdma.OpRead {
		c.reads--
	}
	if e.silent && e.status == rdma.StatusSuccess {
		return
	}
	c.queue.completions.push(rdma.Completion{ID: e.id, Context: c.context, Opcode: e.opcode, Status: e.status})
}

func (c *connection) completeReceive(e *receiveEntry) {
	c.queue.completions.push(rdma.Completion{
		ID: e.id, Context: c.context, Length: e.length, Opcode: rdma.OpReceive, Status: e.status,
	})
}
