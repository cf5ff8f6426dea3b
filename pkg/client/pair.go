// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

// comchPair is the Comch consumer and producer that a queue uses in one session. producer is nil
// until connectQueues has created it.
type comchPair struct {
	memory   *dataMemory // of the session
	fail     func(error) // ends the session
	consumer comch.Consumer
	producer comch.Producer
	// lateProducer and lateConsumer are the same objects if their device finds errors late, and
	// isLate reports whether either does.
	lateProducer comch.LateProducer
	lateConsumer comch.LateConsumer
	isLate       bool
	// awaitsRoom is set while the engine also sleeps until the producer can send again.
	awaitsRoom bool
}

// newPair creates a pair without a producer, and posts all receives of its consumer.
func newPair(ctx context.Context, connection comch.Connection, receives int, memory *dataMemory,
	fail func(error)) (*comchPair, error) {
	consumer, err := connection.NewConsumer(ctx,
		comch.ConsumerConfig{Receives: receives, MemorySize: receives * iomsg.Size})
	if err != nil {
		return nil, err
	}
	for i := range uint64(receives) {
		if err := consumer.PostReceive(uint32(i)*iomsg.Size, iomsg.Size, i); err != nil {
			return nil, errors.Join(fmt.Errorf("post receive %d on the Comch consumer: %w", i, err),
				consumer.Close())
		}
	}
	consumer.Flush()
	memory.users.Add(1)
	return &comchPair{memory: memory, fail: fail, consumer: consumer}, nil
}

// setProducer completes the pair.
func (p *comchPair) setProducer(producer comch.Producer) {
	p.producer = producer
	p.lateProducer, _ = producer.(comch.LateProducer)
	p.lateConsumer, _ = p.consumer.(comch.LateConsumer)
	p.isLate = p.lateProducer != nil || p.lateConsumer != nil
}

// pollLate collects the sends that have completed. It fails the session if the device has rejected
// a send or a receive that it had taken.
func (p *comchPair) pollLate() {
	if late := p.lateProducer; late != nil {
		late.Poll()
		if late.State() != progress.Running && late.Err() != nil {
			p.fail(fmt.Errorf("send a request to the relay: %w", late.Err()))
		}
	}
	if late := p.lateConsumer; late != nil && late.State() != progress.Running &&
		late.Err() != nil {
		p.fail(fmt.Errorf("receive responses of the relay: %w", late.Err()))
	}
}

// attach makes the engine sleep on the pair.
func (p *comchPair) attach(engine *progress.Engine) error {
	if err := engine.AddWaiter(p.consumer); err != nil {
		return err
	}
	if p.lateProducer == nil {
		return nil
	}
	err := engine.AddWaiter(p.lateProducer)
	if err != nil {
		engine.RemoveWaiter(p.consumer)
	}
	return err
}

// awaitRoom makes the engine wake when the producer, which has no room, can send again. An engine
// that cannot be made to does not notice before it wakes for another reason.
func (p *comchPair) awaitRoom(engine *progress.Engine) {
	if p.lateProducer != nil || p.awaitsRoom {
		return // attach has done it, or a former call
	}
	p.awaitsRoom = engine.AddWaiter(p.producer) == nil
}

// hasRoom undoes awaitRoom.
func (p *comchPair) hasRoom(engine *progress.Engine) {
	if p.awaitsRoom {
		engine.RemoveWaiter(p.producer)
		p.awaitsRoom = false
	}
}

// detach undoes attach and awaitRoom, and does nothing the second time.
func (p *comchPair) detach(engine *progress.Engine) {
	p.hasRoom(engine)
	engine.RemoveWaiter(p.consumer)
	if p.lateProducer != nil {
		engine.RemoveWaiter(p.lateProducer)
	}
}

func (p *comchPair) close() error {
	p.memory.users.Add(-1)
	err := p.consumer.Close()
	if p.producer != nil {
		err = errors.Join(err, p.producer.Close())
	}
	return err
}
