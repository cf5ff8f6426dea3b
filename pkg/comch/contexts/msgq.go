// SPDX-License-Identifier: Apache-2.0

package contexts

import (
	"context"
	"fmt"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// MsgQ is a message queue to a DPA with the life that the guide gives it: created, configured,
// started, stopped, and destroyed. It can be configured and started again once it has stopped.
// Consumers and producers are created on a started queue and keep it from stopping.
//
// A MsgQ is not a context: it has no engine and changes its state at once. Any goroutine may call
// its methods.
type MsgQ struct {
	provider comch.MsgQProvider

	mu        sync.Mutex
	config    comch.MsgQConfig
	queue     comch.MsgQ // nil unless started
	destroyed bool
	children  map[child]struct{} // CPU consumers and producers that are not idle
}

// NewMsgQ returns a stopped message queue (doca_comch_msgq_create). It fails with
// status.NotSupported if the provider has no message queues.
func NewMsgQ(provider comch.Provider) (*MsgQ, error) {
	queues, err := comch.AsMsgQProvider(provider)
	if err != nil {
		return nil, fmt.Errorf("create message queue: %w", err)
	}
	return &MsgQ{provider: queues, children: make(map[child]struct{})}, nil
}

// Configure replaces the configuration of a stopped queue. Start checks it.
func (q *MsgQ) Configure(config comch.MsgQConfig) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.checkStopped("configure"); err != nil {
		return err
	}
	q.config = config
	return nil
}

// Start makes the queue ready for consumers and producers. If it fails, the queue stays stopped.
func (q *MsgQ) Start() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.checkStopped("start"); err != nil {
		return err
	}
	queue, err := q.provider.NewMsgQ(q.config)
	if err != nil {
		return fmt.Errorf("start message queue: %w", err)
	}
	q.queue = queue
	return nil
}

// NewDPAConsumer creates a DPA consumer on a started queue, as comch.MsgQ does.
func (q *MsgQ) NewDPAConsumer(ctx context.Context, receives int) (comch.DPAConsumer, error) {
	queue, err := q.started("create DPA consumer of")
	if err != nil {
		return nil, err
	}
	return queue.NewDPAConsumer(ctx, receives)
}

// NewDPAProducer creates a DPA producer on a started queue, as comch.MsgQ does.
func (q *MsgQ) NewDPAProducer(
	ctx context.Context, sends int, userData uint64,
) (comch.DPAProducer, error) {
	queue, err := q.started("create DPA producer of")
	if err != nil {
		return nil, err
	}
	return queue.NewDPAProducer(ctx, sends, userData)
}

// NewMsgQConsumer returns an idle CPU consumer on a started queue. It has no memory: it receives
// immediate data only.
func NewMsgQConsumer(queue *MsgQ) (*Consumer, error) {
	if _, err := queue.started("create consumer of"); err != nil {
		return nil, err
	}
	return newConsumer(queue)
}

// NewMsgQProducer returns an idle CPU producer on a started queue. Its messages consist of
// immediate data only.
func NewMsgQProducer(queue *MsgQ) (*Producer, error) {
	if _, err := queue.started("create producer of"); err != nil {
		return nil, err
	}
	return newProducer(queue)
}

// Stop stops a started queue. It fails with status.InUse while the queue has DPA consumers, DPA
// producers, or CPU consumers and producers that are not idle.
func (q *MsgQ) Stop() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.queue == nil {
		return q.badState("stop", "started")
	}
	if n := len(q.children); n > 0 {
		return status.Errorf(status.InUse,
			"stop message queue: %d of its consumers and producers are not idle: stop them first",
			n)
	}
	if err := q.queue.Close(); err != nil {
		return fmt.Errorf("stop message queue: %w", err)
	}
	q.queue = nil
	return nil
}

// Destroy releases a stopped queue. No operation is allowed afterwards.
func (q *MsgQ) Destroy() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.checkStopped("destroy"); err != nil {
		return err
	}
	q.destroyed = true
	return nil
}

func (q *MsgQ) checkStopped(operation string) error {
	if q.destroyed || q.queue != nil {
		return q.badState(operation, "stopped")
	}
	return nil
}

// started returns the provider's queue, or fails with status.BadState.
func (q *MsgQ) started(operation string) (comch.MsgQ, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.queue == nil {
		return nil, q.badState(operation, "started")
	}
	return q.queue, nil
}

func (q *MsgQ) badState(operation, demanded string) error {
	state := "stopped"
	switch {
	case q.destroyed:
		state = "destroyed"
	case q.queue != nil:
		state = "started"
	}
	return status.Errorf(status.BadState, "%s message queue: it is %s, but must be %s", operation,
		state, demanded)
}

func (q *MsgQ) addChild(member child) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.queue == nil {
		return q.badState("use", "started")
	}
	q.children[member] = struct{}{}
	return nil
}

func (q *MsgQ) removeChild(member child) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.children, member)
}

// checkEvents never fails: a message queue reports no events of consumers.
func (q *MsgQ) checkEvents() error { return nil }

func (q *MsgQ) capabilities() comch.Capabilities {
	queue, err := q.started("query")
	if err != nil {
		return comch.Capabilities{}
	}
	return queue.Capabilities()
}

// settle has nothing to wait for: a message queue has no messages but those of its producers.
func (q *MsgQ) settle() {}

func (q *MsgQ) do(f func()) { go f() }

func (q *MsgQ) newConsumer(
	ctx context.Context, config comch.ConsumerConfig,
) (comch.Consumer, error) {
	queue, err := q.started("create consumer of")
	if err != nil {
		return nil, err
	}
	return queue.NewConsumer(ctx, config)
}

func (q *MsgQ) newProducer(
	ctx context.Context, consumer comch.ConsumerID,
) (comch.Producer, error) {
	queue, err := q.started("create producer of")
	if err != nil {
		return nil, err
	}
	return queue.NewProducer(ctx, consumer)
}
