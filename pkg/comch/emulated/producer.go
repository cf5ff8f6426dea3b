package emulated

import (
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// producer implements comch.Producer.
type producer struct {
	endpoint
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
		p.breakOff(err)
		return status.NotConnected
	}
	if err == error(status.NotConnected) {
		p.end() // the consumer's end is known before the peer tells of it
	}
	return err
}

// breakOff ends the connection from the producer's thread, which does not
// wait for it.
func (p *producer) breakOff(err error) {
	p.end()
	go p.connection.fail(fmt.Errorf("consumer %d: %w", p.consumer.id, err))
}

func (p *producer) Flush() {
	if !p.running() {
		return
	}
	sleeping := &p.consumer.ring.shared.header.consumerSleeping
	if sleeping.Load() != 0 && sleeping.Swap(0) != 0 {
		ringPush(p.consumer.push)
	}
}

func (p *producer) Arm() bool {
	if p.closed {
		return true
	}
	additional := 0
	if !p.armed {
		p.armed = true
		additional = 1
	}
	p.consumer.announceWaiting(additional)
	if p.running() && p.consumer.ring.ready() {
		p.Disarm()
		return false
	}
	return true
}

func (p *producer) Disarm() {
	if p.armed {
		p.armed = false
		p.consumer.withdrawWaiting()
	}
}

func (p *producer) Drain() {
	if err := p.bell.drain(); err != nil && p.running() {
		p.breakOff(err)
	}
}

// Close may be called after the end of the connection, and more than once.
func (p *producer) Close() error {
	if p.closed {
		return nil
	}
	p.Disarm()
	p.closed = true
	p.state.Store(int32(progress.Idle))
	c := p.connection
	c.local.removeProducer(p.id)
	c.put(frame{kind: frameCloseProducer, fields: [maxFields]uint32{p.id, uint32(p.consumer.id)}}, descriptors{})
	c.remote.detach(p)
	return p.bell.close()
}
