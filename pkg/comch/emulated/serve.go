// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"errors"
	"io"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// start starts the goroutines that serve the socket.
func (c *connection) start() {
	// The reader may end the connection before the writer has started, and then waits for both.
	c.running.Add(1)
	defer c.running.Done()
	c.running.Go(c.readFrames)
	c.running.Go(c.writeFrames)
}

// readFrames handles frames from the peer until the connection ends.
func (c *connection) readFrames() {
	for {
		if err := c.awaitCleanup(); err != nil {
			c.fail(err)
			return
		}
		if c.Err() != nil {
			c.socket.receiveNoDescriptors() // nobody waits for their cleanup any more
		}
		f, received, err := c.socket.read()
		c.full = c.account.charge(holdings{descriptors: len(received.list)})
		if err == nil && c.Err() == nil {
			err = c.handle(&f, &received)
		}
		c.cleanup.closeAll(&received)
		switch {
		case err == nil:
			continue
		case isViolation(err):
			c.fail(err)
		case errors.Is(err, io.EOF):
			c.end(byPeer, status.Errorf(status.ConnectionReset,
				"lost peer process %d: it died or aborted the connection", c.peer.PID), nil)
		case errors.Is(err, errGoodbye):
			c.end(byPeer, err, nil)
		default:
			c.end(byPeer, status.Errorf(status.ConnectionReset, "connection lost: %w", err), nil)
		}
		return
	}
}

// maxUncleaned bounds how many tasks the frames of a peer may leave behind before the connection
// reads the next one, for which it waits up to cleanupTimeout.
const maxUncleaned = 64

// awaitCleanup waits until the peer's earlier frames have been cleaned up after. An honest peer's
// descriptors are closed at once.
func (c *connection) awaitCleanup() error {
	if c.cleanup.waitFor(maxUncleaned, c.cleanupTimeout, c.done) || c.Err() != nil {
		return nil
	}
	return status.Errorf(status.TimeOut, "descriptors that peer process %d has sent could not be "+
		"closed within %v: they may be sockets or files whose owner delays that",
		c.peer.PID, c.cleanupTimeout)
}

// errGoodbye matches the error of a connection that the peer ended with a goodbye.
var errGoodbye = errors.New("peer closed the connection")

// handle handles one frame. It must not block: the same goroutine receives the peer's other frames,
// and detects its death.
func (c *connection) handle(f *frame, received *descriptors) error {
	switch f.kind {
	case frameMessage:
		return c.handleMessage(f)
	case frameCredit:
		return c.handleCredit(f)
	case frameOpenConsumer:
		return c.handleOpenConsumer(f, received)
	case frameCloseConsumer:
		c.handleCloseConsumer(f)
		return nil
	case frameStopConsumer:
		c.handleStopConsumer(f)
		return nil
	case frameOpenProducer:
		return c.handleOpenProducer(f, received)
	case frameCloseProducer:
		c.handleCloseProducer(f)
		return nil
	case frameExport:
		return c.handleExport(f, received)
	case frameReply:
		c.requests.deliver(f, received)
		return nil
	case frameGoodbye:
		return goodbyeError(f)
	default:
		return violation("unexpected frame of kind %d after the handshake", f.kind)
	}
}

func goodbyeError(f *frame) error {
	if reason := peerError(f.fields[0], f.body); reason != nil {
		return status.Errorf(status.CodeOf(reason), "%w: %w", errGoodbye, reason)
	}
	return status.Errorf(status.Shutdown, "%w", errGoodbye)
}

func (c *connection) handleMessage(f *frame) error {
	if len(f.body) > c.maxMessageSize {
		return violation("control message of %d bytes exceeds the agreed limit of %d",
			len(f.body), c.maxMessageSize)
	}
	if c.arrivals.Messages() == c.receiveQueue {
		return violation("more than %d control messages without credit", c.receiveQueue)
	}
	c.arrivals.PutMessage(append([]byte(nil), f.body...))
	return nil
}

func (c *connection) handleCredit(f *frame) error {
	for range min(f.fields[0], uint32(cap(c.credits))+1) {
		select {
		case c.credits <- struct{}{}:
		default:
			return violation("excess credit: the receive queue holds %d control messages",
				cap(c.credits))
		}
	}
	return nil
}

// writeFrames writes queued frames. When writing fails, it leaves ending the connection to the
// reading goroutine: the socket may still hold frames that the peer sent before.
func (c *connection) writeFrames() {
	if err := c.writes.writeTo(c.socket); err != nil {
		c.log.Debug("failed to write to peer", zap.Int("peer_pid", c.peer.PID), zap.Error(err))
		c.socket.setReadTimeout(goodbyeTimeout)
		<-c.done
	}
	c.socket.close()
}
