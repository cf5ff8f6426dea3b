package emulated

import (
	"errors"
	"io"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// readFrames handles what the peer sends until the connection ends.
func (c *connection) readFrames() {
	for {
		f, received, err := c.socket.read()
		if err == nil && c.Err() == nil {
			err = c.handle(&f, &received)
		}
		received.closeAll()
		switch {
		case err == nil:
			continue
		case isViolation(err):
			c.fail(err)
		case errors.Is(err, io.EOF):
			c.end(byPeer, status.Errorf(status.ConnectionReset, "peer process %d vanished: it died or aborted the connection", c.peer.PID), nil)
		case errors.Is(err, errGoodbye):
			c.end(byPeer, err, nil)
		default:
			c.end(byPeer, status.Errorf(status.ConnectionReset, "connection broke: %w", err), nil)
		}
		return
	}
}

// errGoodbye marks the peer's reason for leaving.
var errGoodbye = errors.New("peer closed the connection")

// handle acts on one frame. It must not block: the peer's other frames, and
// its death, are seen by the same goroutine.
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
	case frameOpenProducer:
		return c.handleOpenProducer(f, received)
	case frameCloseProducer:
		c.handleCloseProducer(f)
		return nil
	case frameExport:
		return c.handleExport(f, received)
	case frameReply:
		c.requests.answer(f, received)
		return nil
	case frameGoodbye:
		return goodbyeError(f)
	default:
		return violation("frame of kind %d after the handshake", f.kind)
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
		return violation("control message of %d bytes, the agreed limit is %d", len(f.body), c.maxMessageSize)
	}
	select {
	case c.inbox <- append([]byte(nil), f.body...):
		return nil
	default:
		return violation("more than %d control messages without being asked for", cap(c.inbox))
	}
}

func (c *connection) handleCredit(f *frame) error {
	for range min(f.fields[0], uint32(cap(c.credits))+1) {
		select {
		case c.credits <- struct{}{}:
		default:
			return violation("credit for more than %d control messages", cap(c.credits))
		}
	}
	return nil
}

// handleOpenConsumer makes the peer's consumer known here. A consumer beyond
// the limits is refused; the connection lives on.
func (c *connection) handleOpenConsumer(f *frame, received *descriptors) error {
	id := comch.ConsumerID(f.fields[0])
	if !c.role.other().owns(uint32(id)) {
		return violation("consumer id %d is not the peer's to give", id)
	}
	consumer, err := c.admitConsumer(f, received)
	if err != nil {
		c.put(textFrame(frameReply, err, uint32(id)), descriptors{})
		return nil
	}
	answer, err := c.consumerAnswer(consumer)
	if err != nil {
		c.remote.dispose(consumer) // the consumer was never used
		c.put(textFrame(frameReply, err, uint32(id)), descriptors{})
		return nil
	}
	if !c.remote.add(consumer) {
		c.remote.dispose(consumer) // the consumer was never used
		answer.closeAll()
		return violation("consumer %d exists already", id)
	}
	c.events.put(comch.ConsumerEvent{ID: id, Created: true})
	c.put(textFrame(frameReply, nil, uint32(id)), answer)
	return nil
}

// consumerAnswer is what goes back with the consent to a consumer: on the
// server, its ring.
func (c *connection) consumerAnswer(consumer *remoteConsumer) (answer descriptors, err error) {
	if c.role == clientRole {
		return answer, nil
	}
	twin, err := duplicate(consumer.region.Descriptor())
	if err == nil {
		answer.add(twin)
	}
	return answer, err
}

func (c *connection) handleCloseConsumer(f *frame) {
	id := comch.ConsumerID(f.fields[0])
	if c.remote.close(id) {
		c.events.put(comch.ConsumerEvent{ID: id})
	}
}

// handleOpenProducer lets one of our consumers know the peer's producer.
func (c *connection) handleOpenProducer(f *frame, received *descriptors) error {
	id, consumer := f.fields[0], comch.ConsumerID(f.fields[1])
	if !c.role.other().owns(id) {
		return violation("producer id %d is not the peer's to give", id)
	}
	err := c.admitProducer(id, consumer, received)
	c.put(textFrame(frameReply, err, id), descriptors{})
	return nil
}

func (c *connection) admitProducer(id uint32, consumer comch.ConsumerID, received *descriptors) error {
	audience := c.local.audience(consumer)
	if audience == nil {
		return status.Errorf(status.NotFound, "there is no consumer %d", consumer)
	}
	push, ok := received.take()
	if !ok {
		return status.Errorf(status.InvalidValue, "producer %d came without a doorbell", id)
	}
	if err := checkPush(push); err != nil {
		closeDescriptor(push)
		return err
	}
	if err := audience.add(id, push, c.limits.MaxProducers); err != nil {
		closeDescriptor(push)
		return err
	}
	return nil
}

func (c *connection) handleCloseProducer(f *frame) {
	if audience := c.local.audience(comch.ConsumerID(f.fields[1])); audience != nil {
		if push, found := audience.remove(f.fields[0]); found {
			c.disposal.close(push)
		}
	}
}
