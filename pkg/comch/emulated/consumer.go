package emulated

import (
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// consumer implements comch.Consumer. What its thread writes and what others
// write lie in different cache lines.
type consumer struct {
	endpoint
	connection *connection
	id         comch.ConsumerID
	region     *memory.Region
	audience   audience
	_          [cacheLine]byte

	ring    receiveRing
	stopped bool // the peer has been told
	closed  bool
	broken  bool // the peer broke the protocol in this ring
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
		c.audience.wake()
	}
}

// finished reports whether nothing is received any more. After an end by the
// peer it still is.
func (c *consumer) finished() bool { return c.closed || c.broken || c.connection.left.Load() }

func (c *consumer) Poll(received []comch.Received) int {
	if c.finished() {
		return 0
	}
	n, err := c.ring.poll(received)
	if err != nil {
		c.breakOff(err)
	}
	return n
}

// breakOff ends the connection from the consumer's thread, which does not
// wait for it.
func (c *consumer) breakOff(err error) {
	c.broken = true
	c.end()
	go c.connection.fail(fmt.Errorf("consumer %d: %w", c.id, err))
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

func (c *consumer) Drain() {
	if err := c.bell.drain(); err != nil && !c.broken {
		c.breakOff(err)
	}
}

// Stop may be called after the end of the connection. The consumer still
// counts as open.
func (c *consumer) Stop() {
	if c.stopped {
		return
	}
	c.stopped = true
	c.end()
	c.ring.withdraw()
	c.connection.put(frame{kind: frameCloseConsumer, fields: [maxFields]uint32{uint32(c.id)}}, descriptors{})
}

// Close may be called after the end of the connection, and more than once.
func (c *consumer) Close() error {
	if c.closed {
		return nil
	}
	c.Stop()
	c.closed = true
	c.state.Store(int32(progress.Idle))
	c.connection.local.removeConsumer(c.id)
	return c.release()
}
