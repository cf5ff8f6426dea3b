// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package doca

import (
	"context"
	"fmt"
	"math/bits"
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

const (
	// announcement bounds the wait for the event of a consumer that the caller has heard of in
	// another way.
	announcement = 500 * time.Millisecond
	// batch is how many messages are held back until Flush.
	batch = 32
)

// producer implements comch.LateProducer.
type producer struct {
	object
	doca         *doca.Producer
	id           uint32
	maxLength    int // bytes of a message
	maxImmediate int
	held         int    // messages that libdoca has not seen
	collected    uint32 // sends that Poll has returned
	blocked      bool   // the last Send has found no room
	aborted      bool
	once         sync.Once
}

func (c *connection) NewProducer(ctx context.Context,
	target comch.ConsumerID) (comch.Producer, error) {
	err := c.adopt()
	if err != nil {
		return nil, fmt.Errorf("create comch producer: %w", err)
	}
	p, err := c.newProducer(ctx, target)
	if err != nil {
		c.disown()
		return nil, fmt.Errorf("create comch producer for consumer %d: %w", target, err)
	}
	return p, nil
}

func (c *connection) newProducer(ctx context.Context, target comch.ConsumerID) (*producer, error) {
	caps := &c.endpoint.capabilities
	p := &producer{object: object{connection: c, what: "comch producer", target: target},
		maxLength: caps.MaxBufferLength, maxImmediate: caps.MaxImmediateLength}
	sends := 1 << (bits.Len(uint(max(1, caps.MaxSendTasks))) - 1) // a power of two
	var err error
	p.memory, err = allocate(max(producerMemory, p.maxLength+doca.MessageAlignment))
	if err != nil {
		return nil, err
	}
	p.drain = func() bool { return p.aborted || p.doca.Turn(budget) == 0 && p.isDrained() }
	deadline := time.Now().Add(announcement)
	err = p.open(ctx, func() (bool, error) {
		switch {
		case c.gone || c.over || c.ended.Load():
			return true, c.errNotConnected()
		case !c.live[target] && (c.expired[target] || time.Now().After(deadline)):
			return true, status.Errorf(status.NotFound, "the peer has no such consumer")
		case !c.live[target]:
			return false, nil
		}
		var err error
		p.doca, err = doca.NewProducer(doca.ProducerConfig{Device: c.endpoint.device,
			Connection: c.handle, Consumer: uint32(target), Memory: p.memory, Sends: sends,
			Wait: caps.CanWait})
		if err == nil {
			p.context = p.doca
		}
		return true, err
	})
	if err == nil {
		if p.id, err = p.doca.ID(); err != nil {
			_ = p.close()
		}
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (p *producer) ID() uint32 { return p.id }

// isDrained reports whether nothing is in flight, or never will be complete.
func (p *producer) isDrained() bool {
	return p.doca.Pending() == 0 || p.isOver() || p.doca.HasFailed()
}

func (p *producer) Send(message, immediate []byte) error {
	if len(message) > p.maxLength || len(immediate) > p.maxImmediate {
		return status.Errorf(status.InvalidValue,
			"send message of %d bytes with %d of immediate data: the device supports %d and %d",
			len(message), len(immediate), p.maxLength, p.maxImmediate)
	}
	if p.isOver() || p.doca.HasFailed() {
		return status.NotConnected
	}
	if !p.doca.Write(message, immediate) {
		p.blocked = true
		return status.Again
	}
	p.blocked = false
	if p.held++; p.held == batch {
		p.Flush()
	}
	return nil
}

func (p *producer) Flush() {
	if p.held > 0 {
		p.held = 0
		p.doca.Turn(budget)
	}
}

// Poll implements comch.LateProducer.
func (p *producer) Poll() int {
	if p.doca.Pending() > 0 {
		p.held = 0
		p.doca.Turn(budget)
	}
	return p.collect()
}

func (p *producer) collect() int {
	succeeded := p.doca.Succeeded()
	n := succeeded - p.collected
	p.collected = succeeded
	return int(n)
}

func (p *producer) State() progress.State {
	if p.isOver() || p.doca.HasFailed() {
		return progress.Idle
	}
	return progress.Running
}

// Err implements comch.LateProducer.
func (p *producer) Err() error {
	err := p.doca.Failed()
	if p.isOver() || isPeerGone(err) {
		return nil
	}
	return err
}

// Abort implements comch.LateProducer.
func (p *producer) Abort() { p.aborted = true }

// Arm implements progress.Waiter. A producer whose messages libdoca does not accept yet does not
// sleep, because nothing signals that it would.
func (p *producer) Arm() bool {
	switch {
	case p.isOver():
		return true
	case p.doca.HasFailed() || p.doca.Succeeded() != p.collected || p.doca.Unsubmitted() > 0:
		return false
	case p.blocked && p.doca.Room() > 0:
		p.blocked = false
		return false
	case p.doca.Pending() == 0:
		return true
	}
	return p.doca.Arm()
}

func (p *producer) Disarm() { p.doca.Clear() }

func (p *producer) Clear() {
	p.doca.Clear()
	p.waker.clear()
}

func (p *producer) Close() error {
	err := p.close()
	p.once.Do(p.connection.disown)
	return err
}
