// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/fault"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// failure is how a rule ends a consumer or producer after the fact: the device has taken an
// operation, and the next Poll finds that it has failed.
type failure struct {
	pending error // since the operation
	found   error // by Poll
}

// next asks the rules about an operation that has been taken.
func (f *failure) next(point *fault.Point, what string, size uint64) {
	if hit := point.Next(size); hit.Action == fault.Error {
		f.pending = fmt.Errorf("%s: %w", what, hit.Err())
	}
}

func (f *failure) find() { f.found = f.pending }

// state replaces that of the inner object after a failure.
func (f *failure) state(inner progress.State) progress.State {
	if f.found != nil && inner == progress.Running {
		return progress.Stopping
	}
	return inner
}

// err returns what has ended the object: a rule, or inner if that is late itself.
func (f *failure) err(inner interface{ Err() error }, isLate bool) error {
	if f.found == nil && isLate {
		return inner.Err()
	}
	return f.found
}

// lateProducer is a producer whose sends can fail after Send has returned.
type lateProducer struct {
	*producer
	inner     comch.LateProducer // nil if the inner producer is not late
	point     *fault.Point
	failure   failure
	completed int  // sends that Poll has not reported
	isFull    bool // the last Send failed with status.Again
	isArmed   bool
}

// Send sends a message, unless an earlier one has failed.
func (p *lateProducer) Send(message, immediate []byte) error {
	if p.failure.found != nil {
		return status.NotConnected
	}
	if p.failure.pending == nil && !p.isFull { // otherwise the rules have been asked
		p.failure.next(p.point, "complete a send", uint64(len(message)))
	}
	if p.failure.pending != nil {
		return nil // the message is lost, like those after it
	}
	err := p.producer.Send(message, immediate)
	p.isFull = err == error(status.Again)
	if err == nil {
		p.completed++
	}
	return err
}

// Poll returns how many sends have succeeded.
func (p *lateProducer) Poll() int {
	n := p.completed
	if p.inner != nil {
		n = p.inner.Poll()
	}
	p.completed = 0
	p.failure.find()
	return n
}

// Arm prepares for sleep until a send has completed or there is room again.
func (p *lateProducer) Arm() bool {
	ended := p.State() != progress.Running
	if p.completed > 0 || p.failure.pending != nil && !ended {
		return false
	}
	if p.inner == nil && !p.isFull {
		return true // only the end of the connection makes the descriptor readable
	}
	p.isArmed = p.producer.Arm()
	return p.isArmed
}

// Disarm cancels Arm.
func (p *lateProducer) Disarm() {
	if p.isArmed {
		p.isArmed = false
		p.producer.Disarm()
	}
}

// State returns Running until the producer has ended or a send has failed.
func (p *lateProducer) State() progress.State { return p.failure.state(p.producer.State()) }

// Err returns the error of the send that has ended the producer.
func (p *lateProducer) Err() error { return p.failure.err(p.inner, p.inner != nil) }

// Abort makes Close drop the sends in flight.
func (p *lateProducer) Abort() {
	if p.inner != nil {
		p.inner.Abort()
	}
}

// lateConsumer is a consumer whose receives can fail after PostReceive has returned.
type lateConsumer struct {
	*consumer
	inner   comch.LateConsumer // nil if the inner consumer is not late
	point   *fault.Point
	failure failure
}

// PostReceive posts a receive, unless an earlier one has failed.
func (c *lateConsumer) PostReceive(offset, length uint32, userData uint64) error {
	if c.failure.found != nil {
		return status.BadState
	}
	if err := c.consumer.PostReceive(offset, length, userData); err != nil {
		return err
	}
	c.failure.next(c.point, "post a receive", uint64(length))
	return nil
}

// Poll fills received with messages, and nothing after a receive has failed.
func (c *lateConsumer) Poll(received []comch.Received) int {
	if c.failure.find(); c.failure.found != nil {
		return 0
	}
	return c.consumer.Poll(received)
}

// Arm prepares for sleep until a message arrives or is due, or a receive has failed.
func (c *lateConsumer) Arm() bool {
	if c.failure.pending != c.failure.found {
		return false
	}
	return c.consumer.Arm()
}

// State returns Running until the consumer has ended or a receive has failed.
func (c *lateConsumer) State() progress.State { return c.failure.state(c.consumer.State()) }

// Err returns the error of the receive that has ended the consumer.
func (c *lateConsumer) Err() error { return c.failure.err(c.inner, c.inner != nil) }
