package contexts

import (
	"context"

	"github.com/zc-relay/zc-relay/pkg/comch"
)

// channel is what consumers and producers are made on.
type channel interface {
	// adopt keeps the channel open for a consumer or producer, until disown.
	adopt(child) error
	disown(child)
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
