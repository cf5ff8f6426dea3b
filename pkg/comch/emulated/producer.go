// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"fmt"

	"github.com/zc-relay/zc-relay/internal/linux"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// producer implements comch.Producer.
type producer struct {
	lifecycle
	connection *connection
	id         uint32
	consumer   *remoteConsumer
	armed      bool
	closed     bool
}

func (p *producer) ID() uint32 { return p.id }

func (p *producer) Send(message, immediate []byte) error {
	if !p.running() {
		return status.NotConnected
	}
	err := p.consumer.ring.send(p.id, message, immediate)
	if err == nil || err == error(status.Again) {
		return err
	}
	if isViolation(err) {
		p.fail(err)
		return status.NotConnected
	}
	if err == error(status.NotConnected) {
		p.stopAndWake() // the ring shows that the consumer is gone before the peer's frame does
	}
	return err
}

// fail ends the connection without waiting for it. It belongs to the producer's thread.
func (p *producer) fail(err error) {
	p.stopAndWake()
	go p.connection.fail(fmt.Errorf("consumer %d: %w", p.consumer.id, err))
}

func (p *producer) Flush() {
	if !p.running() {
		return
	}
	sleeping := &p.consumer.ring.shared.header.consumerSleeping
	if sleeping.Load() != 0 && sleeping.Swap(0) != 0 {
		linux.Wake(p.consumer.button)
	}
}

func (p *producer) Arm() bool {
	if p.closed {
		return true
	}
	c := p.consumer
	c.waitMu.Lock()
	if !p.armed {
		p.armed = true
		c.waiting++
	}
	c.ring.shared.header.producersWaiting.Store(1)
	c.waitMu.Unlock()
	if p.running() && p.consumer.ring.ready() {
		p.Disarm()
		return false
	}
	return true
}

func (p *producer) Disarm() {
	if !p.armed {
		return
	}
	p.armed = false
	c := p.consumer
	c.waitMu.Lock()
	defer c.waitMu.Unlock()
	c.waiting--
	if c.waiting == 0 {
		c.ring.shared.header.producersWaiting.Store(0)
	}
}

func (p *producer) Clear() {
	if err := p.bell.clear(); err != nil && p.running() {
		p.fail(err)
	}
}

// Close may be called after the connection has ended, and more than once.
func (p *producer) Close() error {
	if p.closed {
		return nil
	}
	p.Disarm()
	p.closed = true
	p.state.Store(int32(progress.Idle))
	c := p.connection
	c.local.removeProducer(&p.lifecycle)
	c.enqueue(frame{kind: frameCloseProducer,
		fields: [maxFields]uint32{p.id, uint32(p.consumer.id)}}, descriptors{})
	c.remote.removeProducer(p.consumer, &p.lifecycle)
	return p.bell.close()
}

// CanSend reports whether the consumer has a receive posted. DPA kernels use it.
func (p *producer) CanSend() bool { return p.consumer.ring.ready() }

// ImmediateLength returns how many bytes of immediate data the consumer accepts. DPA kernels use
// it.
func (p *producer) ImmediateLength() int { return p.consumer.ring.immediate }
