package contexts

import (
	"context"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/comch"
)

// channel is what consumers and producers are made on.
type channel interface {
	// adopt keeps the channel open for a consumer or producer, until disown.
	addChild(child) error
	removeChild(child)
	// checkEvents refuses a channel on which consumers would come unseen.
	checkEvents() error
	capabilities() comch.Capabilities
	newConsumer(context.Context, comch.ConsumerConfig) (comch.Consumer, error)
	newProducer(context.Context, comch.ConsumerID) (comch.Producer, error)
}

// fastPath is what consumers and producers have in common.
type fastPath struct {
	lifecycle
	channel channel
	limits  comch.Capabilities
	// pending counts goroutines that a stopping context waits for.
	pending int
	ctx     context.Context // of these goroutines
	cancel  context.CancelFunc
}

func (f *fastPath) create(kind string, on channel) {
	f.kind = kind
	f.channel = on
	f.limits = on.capabilities()
}

// msgqChannel makes CPU consumers and producers on a message queue, which
// counts them itself, has no peer that could vanish, and needs no events.
type msgqChannel struct {
	queue comch.MsgQ
}

func (msgqChannel) addChild(child) error { return nil }

func (msgqChannel) removeChild(child) {}

func (msgqChannel) checkEvents() error { return nil }

func (m msgqChannel) capabilities() comch.Capabilities { return m.queue.Capabilities() }

func (m msgqChannel) newConsumer(ctx context.Context, config comch.ConsumerConfig) (comch.Consumer, error) {
	return m.queue.NewConsumer(ctx, config)
}

func (m msgqChannel) newProducer(ctx context.Context, consumer comch.ConsumerID) (comch.Producer, error) {
	return m.queue.NewProducer(ctx, consumer)
}

// NewMsgQConsumer creates an idle CPU consumer on a message queue. Its buffers
// have no bytes: it receives immediate data only.
func NewMsgQConsumer(queue comch.MsgQ) (*Consumer, error) {
	c, err := newConsumer(msgqChannel{queue})
	if err != nil {
		return nil, fmt.Errorf("create consumer of message queue: %w", err)
	}
	return c, nil
}

// NewMsgQProducer creates an idle CPU producer on a message queue. Its
// messages have no bytes: it sends immediate data only.
func NewMsgQProducer(queue comch.MsgQ) (*Producer, error) {
	p, err := newProducer(msgqChannel{queue})
	if err != nil {
		return nil, fmt.Errorf("create producer of message queue: %w", err)
	}
	return p, nil
}
