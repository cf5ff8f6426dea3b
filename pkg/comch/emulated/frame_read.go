package emulated

import (
	"errors"
	"io"

	"github.com/zc-relay/zc-relay/pkg/status"
)

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
