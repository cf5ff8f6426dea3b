// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// consumer implements comch.Consumer. Fields that its thread writes and fields that others write
// lie in different cache lines.
type consumer struct {
	lifecycle
	connection *connection
	id         comch.ConsumerID
	region     *memory.Region
	producers  remoteProducers
	_          [cacheLine]byte

	ring    receiveRing
	stopped bool // Stop has been called: the peer is notified
	closed  bool
	broken  bool // the peer violated the protocol in this ring
	_       [cacheLine]byte
}

func (c *consumer) ID() comch.ConsumerID { return c.id }

func (c *consumer) Memory() []byte { return c.ring.shared.memory }

func (c *consumer) PostReceive(offset, length uint32, userData uint64) error {
	if c.stopped {
		return status.BadState
	}
	return c.ring.post(offset, length, userData)
}

func (c *consumer) Flush() {
	if c.stopped || !c.ring.publish() {
		return
	}
	if c.ring.shared.header.producersWaiting.Swap(0) != 0 {
		c.producers.wake()
	}
}

func (c *consumer) Poll(received []comch.Received) int {
	if c.finished() {
		return 0
	}
	n, err := c.ring.poll(received)
	if err != nil {
		c.fail(err)
	}
	return n
}

// Watch implements comch.WatchedConsumer.
func (c *consumer) Watch() progress.Watch {
	if c.finished() {
		return progress.Watch{}
	}
	return c.ring.watch()
}

// copyingConsumer is a consumer that receives into the application's memory. Its messages arrive in
// the ring and are copied when they are polled, so that the peer, which can write to the ring,
// never maps the application's memory.
type copyingConsumer struct {
	*consumer
	memory []byte
}

func (c *copyingConsumer) Memory() []byte { return c.memory }

func (c *copyingConsumer) Poll(received []comch.Received) int {
	n := c.consumer.Poll(received)
	ring := c.ring.shared.memory
	for i := range received[:n] {
		r := &received[i]
		copy(c.memory[r.Offset:][:r.Length], ring[r.Offset:][:r.Length])
	}
	return n
}

// fail ends the connection without waiting for it. It belongs to the consumer's thread.
func (c *consumer) fail(err error) {
	c.broken = true
	c.stopAndWake()
	go c.connection.fail(fmt.Errorf("consumer %d: %w", c.id, err))
}

// finished reports whether the consumer receives nothing more. If the peer ended the connection,
// the consumer still receives what was sent before.
func (c *consumer) finished() bool {
	return c.closed || c.broken || c.connection.endedLocally.Load()
}

func (c *consumer) Arm() bool {
	if c.finished() {
		return true // the doorbell has rung
	}
	sleeping := &c.ring.shared.header.consumerSleeping
	sleeping.Store(1)
	if c.ring.ready() {
		sleeping.Store(0)
		return false
	}
	return true
}

func (c *consumer) Disarm() {
	if !c.closed {
		c.ring.shared.header.consumerSleeping.Store(0)
	}
}

func (c *consumer) Clear() {
	if err := c.bell.clear(); err != nil && !c.broken {
		c.fail(err)
	}
}

// Stop may be called after the connection has ended. The consumer still counts as open.
func (c *consumer) Stop() {
	if c.stopped {
		return
	}
	c.stopped = true
	c.stopAndWake()
	c.ring.revoke()
	c.notify(frameStopConsumer)
}

// notify tells the peer what has become of the consumer.
func (c *consumer) notify(kind frameKind) {
	c.connection.enqueue(frame{kind: kind, fields: [maxFields]uint32{uint32(c.id)}}, descriptors{})
}

// Close may be called after the connection has ended, and more than once.
func (c *consumer) Close() error {
	if c.closed {
		return nil
	}
	c.Stop()
	c.closed = true
	c.state.Store(int32(progress.Idle))
	c.connection.local.removeConsumer(c.id)
	c.notify(frameCloseConsumer)
	return c.release()
}

// release frees the consumer's resources.
func (c *consumer) release() error {
	cleanup := &c.connection.cleanup
	for _, p := range c.producers.close() {
		c.connection.remoteProducers.Add(-1)
		cleanup.close(p.button)
	}
	c.ring.revoke() // before its pages are freed
	c.ring.shared = sharedRing{}
	err := c.bell.close()
	if c.region != nil {
		cleanup.free(c.connection.role, c.region)
	}
	return err
}
