package contexts

import (
	"context"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/comch"
)

// channel is what consumers and producers are created on: a Connection, or a message queue to a
// DPA.
type channel interface {
	// addChild keeps the channel open for a consumer or producer until removeChild.
	addChild(child) error
	removeChild(child)
	// checkEvents fails if the application has no callbacks for the peer's consumers.
	checkEvents() error
	capabilities() comch.Capabilities
	newConsumer(context.Context, comch.ConsumerConfig) (comch.Consumer, error)
	newProducer(context.Context, comch.ConsumerID) (comch.Producer, error)
}

// fastPath is the common part of Consumer and Producer.
type fastPath struct {
	lifecycle
	channel channel
	limits  comch.Capabilities
}

func (f *fastPath) create(kind string, on channel) {
	f.kind = kind
	f.channel = on
	f.limits = on.capabilities()
}

// msgqChannel creates CPU consumers and producers on a message queue. The queue counts them itself,
// its peer cannot vanish, and it has no consumer events.
type msgqChannel struct {
	queue comch.MsgQ
}

func (msgqChannel) addChild(child) error               { return nil }
func (msgqChannel) removeChild(child)                  {}
func (msgqChannel) checkEvents() error                 { return nil }
func (m msgqChannel) capabilities() comch.Capabilities { return m.queue.Capabilities() }

func (m msgqChannel) newConsumer(
	ctx context.Context, config comch.ConsumerConfig,
) (comch.Consumer, error) {
	return m.queue.NewConsumer(ctx, config)
}

func (m msgqChannel) newProducer(
	ctx context.Context, consumer comch.ConsumerID,
) (comch.Producer, error) {
	return m.queue.NewProducer(ctx, consumer)
}

// NewMsgQConsumer returns an idle CPU consumer on a message queue. It has no memory: it receives
// immediate data only.
func NewMsgQConsumer(queue comch.MsgQ) (*Consumer, error) {
	c, err := newConsumer(msgqChannel{queue})
	if err != nil {
		return nil, fmt.Errorf("create consumer of message queue: %w", err)
	}
	return c, nil
}

// NewMsgQProducer returns an idle CPU producer on a message queue. Its messages consist of
// immediate data only.
func NewMsgQProducer(queue comch.MsgQ) (*Producer, error) {
	p, err := newProducer(msgqChannel{queue})
	if err != nil {
		return nil, fmt.Errorf("create producer of message queue: %w", err)
	}
	return p, nil
}
