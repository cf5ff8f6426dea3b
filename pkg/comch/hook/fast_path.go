// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"slices"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/fault"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// consumer receives messages for one thread. Its Waiter hides that of the inner consumer, whose
// methods are one level deeper.
type consumer struct {
	*fault.Waiter
	innerConsumer
	point *fault.Point

	// These serve rules that hold messages back.
	held     []heldMessage // not yet delivered, in order
	scratch  []comch.Received
	receives int // limit of posted receives
	posted   int // receives on the inner consumer
}

type innerConsumer struct{ comch.Consumer }

type heldMessage struct {
	received comch.Received
	stall    fault.Stall
}

// scratchSize is how many messages are polled at a time while some are held back.
const scratchSize = 32

func newConsumer(inner comch.Consumer, p *points, receives int) (*consumer, error) {
	waiter, err := p.injector.NewWaiter(inner, p.consumerPoll)
	if err != nil {
		return nil, err
	}
	c := &consumer{Waiter: waiter, innerConsumer: innerConsumer{inner}, point: p.consumerPoll,
		receives: receives}
	if waiter.CanStall() {
		c.held = make([]heldMessage, 0, receives)
		c.scratch = make([]comch.Received, scratchSize)
	}
	return c, nil
}

// PostReceive posts a receive. A message that is held back still occupies its receive.
func (c *consumer) PostReceive(offset, length uint32, userData uint64) error {
	if !c.CanStall() {
		return c.Consumer.PostReceive(offset, length, userData)
	}
	if c.posted+len(c.held) >= c.receives {
		return status.Full
	}
	if err := c.Consumer.PostReceive(offset, length, userData); err != nil {
		return err
	}
	c.posted++
	return nil
}

// Poll fills received with messages that are due.
func (c *consumer) Poll(received []comch.Received) int {
	arrived := received
	if len(c.held) > 0 {
		arrived = c.scratch
	}
	done := 0
	n := c.Consumer.Poll(arrived)
	c.posted -= n
	for i := range arrived[:n] {
		r := &arrived[i]
		hit := c.point.Next(uint64(r.Length))
		if hit.Action == fault.Corrupt {
			c.corrupt(hit, r)
		}
		if len(c.held) > 0 || hit.Stalls() {
			c.held = append(c.held, heldMessage{received: *r, stall: hit.Stall()})
			continue
		}
		done++
	}
	if len(c.held) > 0 {
		done += c.deliver(received[done:])
	}
	return done
}

// deliver moves messages that are due to received and returns their number.
func (c *consumer) deliver(received []comch.Received) int {
	n := 0
	for n < len(received) && n < len(c.held) && c.isDue(&c.held[n].stall) {
		received[n] = c.held[n].received
		n++
	}
	c.held = slices.Delete(c.held, 0, n)
	return n
}

// isDue reports whether a stall is over. Nothing is held back after the end, when an empty poll
// means that nothing more arrives.
func (c *consumer) isDue(stall *fault.Stall) bool {
	return stall.IsOver() || c.State() != progress.Running
}

// corrupt inverts a bit of a message, or of its immediate data if it has no other.
func (c *consumer) corrupt(hit fault.Hit, r *comch.Received) {
	data := r.Immediate[:r.ImmediateLength]
	if r.Length > 0 {
		data = c.Memory()[r.Offset : r.Offset+r.Length]
	}
	hit.Corrupt(data)
}

// Arm prepares for sleep until a message arrives or is due.
func (c *consumer) Arm() bool {
	if len(c.held) > 0 {
		stall := &c.held[0].stall
		c.WakeAt(stall)
		if c.isDue(stall) {
			c.Disarm() // it may have been armed before
			return false
		}
	}
	return c.Waiter.Arm()
}

// Close destroys the consumer and what it holds back.
func (c *consumer) Close() error {
	if err := c.Consumer.Close(); err != nil {
		return err
	}
	return c.Waiter.Close()
}

// producer sends messages for one thread. Its Waiter hides that of the inner producer, as the
// consumer's does.
type producer struct {
	*fault.Waiter
	innerProducer
	connection *connection

	isStalled bool
	stall     fault.Stall // of the message that the owner tries to send
	scratch   []byte      // a corrupted message
}

type innerProducer struct{ comch.Producer }

func newProducer(inner comch.Producer, c *connection) (*producer, error) {
	waiter, err := c.points.injector.NewWaiter(inner, c.points.producerSend)
	if err != nil {
		return nil, err
	}
	return &producer{Waiter: waiter, innerProducer: innerProducer{inner}, connection: c}, nil
}

// Send sends a message unless it is held back.
func (p *producer) Send(message, immediate []byte) error {
	if p.isStalled {
		if !p.stall.IsOver() && p.State() == progress.Running {
			return status.Again
		}
		p.isStalled = false
		return p.Producer.Send(message, immediate)
	}
	hit := p.connection.points.producerSend.Next(uint64(len(message)))
	switch hit.Action {
	case fault.Error:
		return hit.Err()
	case fault.Delay, fault.Freeze:
		if p.State() != progress.Running {
			break // Send says why
		}
		p.isStalled, p.stall = true, hit.Stall()
		return status.Again
	case fault.Drop:
		p.connection.Abort()
		return hit.Lost()
	case fault.Corrupt:
		return p.sendCorrupted(hit, message, immediate)
	case fault.Duplicate:
		if err := p.Producer.Send(message, immediate); err != nil {
			return err
		}
		// Without a receive for the second message, there is only one.
		if err := p.Producer.Send(message, immediate); !errors.Is(err, status.Again) {
			return err
		}
		return nil
	}
	return p.Producer.Send(message, immediate)
}

// sendCorrupted sends a copy with an inverted bit in the message, or in the immediate data if there
// is no other.
func (p *producer) sendCorrupted(hit fault.Hit, message, immediate []byte) error {
	if len(message) == 0 {
		p.scratch = append(p.scratch[:0], immediate...)
		hit.Corrupt(p.scratch)
		return p.Producer.Send(message, p.scratch)
	}
	p.scratch = append(p.scratch[:0], message...)
	hit.Corrupt(p.scratch)
	return p.Producer.Send(p.scratch, immediate)
}

// Arm prepares for sleep until the consumer has a receive posted, or the message that is held back
// is due.
func (p *producer) Arm() bool {
	if !p.isStalled {
		return p.Waiter.Arm()
	}
	p.WakeAt(&p.stall)
	if p.stall.IsOver() || p.State() != progress.Running {
		p.Disarm() // it may have been armed before
		return false
	}
	p.Waiter.Arm() // for the end of the connection; a posted receive does not matter
	return true
}

// Close destroys the producer.
func (p *producer) Close() error {
	if err := p.Producer.Close(); err != nil {
		return err
	}
	return p.Waiter.Close()
}
