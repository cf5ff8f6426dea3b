package datapath

import "github.com/zc-relay/zc-relay/pkg/progress"

// consumerWaiter and producerWaiter let the worker sleep on a lane: on the
// consumer while requests are taken from it, on the producer while answers
// wait for the client to post receives. Only one of the two counts at a time.
type (
	relayConsumerWaiter struct{ *RelayLane }
	relayProducerWaiter struct{ *RelayLane }
)

func (l *RelayLane) consumerWaiter() progress.Waiter { return relayConsumerWaiter{l} }
func (l *RelayLane) producerWaiter() progress.Waiter { return relayProducerWaiter{l} }

// serves reports whether the lane deals with its client at all.
func (l *RelayLane) serves() bool { return l.state == relayRunning || l.state == relayRefused }

// takesRequests reports whether a request of the client would be taken now.
func (l *RelayLane) takesRequests() bool {
	return l.serves() && !l.draining && l.outbox.empty() && l.hasRoom()
}

// Descriptor implements progress.Waiter.
func (w relayConsumerWaiter) Descriptor() int { return w.config.Consumer.Descriptor() }

// Arm implements progress.Waiter.
func (w relayConsumerWaiter) Arm() bool {
	if !w.takesRequests() {
		return true
	}
	w.consumerArmed = w.config.Consumer.Arm()
	return w.consumerArmed
}

// Disarm implements progress.Waiter.
func (w relayConsumerWaiter) Disarm() {
	if w.consumerArmed {
		w.consumerArmed = false
		w.config.Consumer.Disarm()
	}
}

// Drain implements progress.Waiter.
func (w relayConsumerWaiter) Drain() { w.config.Consumer.Drain() }

// Descriptor implements progress.Waiter.
func (w relayProducerWaiter) Descriptor() int { return w.config.Producer.Descriptor() }

// Arm implements progress.Waiter.
func (w relayProducerWaiter) Arm() bool {
	if w.outbox.empty() || !w.serves() {
		return true
	}
	w.producerArmed = w.config.Producer.Arm()
	return w.producerArmed
}

// Disarm implements progress.Waiter.
func (w relayProducerWaiter) Disarm() {
	if w.producerArmed {
		w.producerArmed = false
		w.config.Producer.Disarm()
	}
}

// Drain implements progress.Waiter.
func (w relayProducerWaiter) Drain() { w.config.Producer.Drain() }
