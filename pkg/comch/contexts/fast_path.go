// SPDX-License-Identifier: Apache-2.0

package contexts

import (
	"context"

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
	// settle waits until the peer has seen what this side has done before, but not for a peer that
	// has no room for messages.
	settle()
	// do does the same, and runs f, which may take long, before the peer sees what this side does
	// from then on.
	do(f func())
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
