// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package doca

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// consumer implements comch.LateConsumer.
type consumer struct {
	object
	doca     *doca.Consumer
	id       comch.ConsumerID
	bytes    []byte // what the application sees
	receives int
	empty    uint32 // the last offset of a byte, for receives of length 0
	stopped  bool
	once     sync.Once
}

func (c *connection) NewConsumer(ctx context.Context,
	config comch.ConsumerConfig) (comch.Consumer, error) {
	if err := c.checkConsumer(&config); err != nil {
		return nil, fmt.Errorf("create comch consumer: %w", err)
	}
	if err := c.adopt(); err != nil {
		return nil, fmt.Errorf("create comch consumer: %w", err)
	}
	x, err := c.newConsumer(ctx, config)
	if err != nil {
		c.disown()
		return nil, fmt.Errorf("create comch consumer: %w", err)
	}
	return x, nil
}

func (c *connection) checkConsumer(config *comch.ConsumerConfig) error {
	caps := &c.endpoint.capabilities
	config.ImmediateLength = cmp.Or(config.ImmediateLength, caps.MaxImmediateLength)
	size := config.MemorySize
	if config.Memory != nil {
		switch {
		case size != 0:
			return status.Errorf(status.InvalidValue, "both memory and its size are set")
		case !config.Memory.Mapped():
			return status.Errorf(status.NotSupported, "the memory was imported")
		case config.Memory.Len() > math.MaxInt:
			return status.Errorf(status.InvalidValue, "memory of %d bytes", config.Memory.Len())
		}
		size = int(config.Memory.Len())
	}
	switch {
	case config.Receives < 1 || config.Receives > caps.MaxReceives:
		return status.Errorf(status.InvalidValue, "%d receives: the device supports 1 to %d",
			config.Receives, caps.MaxReceives)
	case size < 1 || size > caps.MaxMemorySize:
		return status.Errorf(status.InvalidValue, "%d bytes of memory are not between 1 and %d",
			size, caps.MaxMemorySize)
	case config.ImmediateLength < 0 || config.ImmediateLength > caps.MaxImmediateLength:
		return status.Errorf(status.InvalidValue,
			"%d bytes of immediate data: the device supports up to %d", config.ImmediateLength,
			caps.MaxImmediateLength)
	}
	return nil
}

func (c *connection) newConsumer(ctx context.Context,
	config comch.ConsumerConfig) (*consumer, error) {
	x := &consumer{object: object{connection: c, what: "comch consumer"},
		receives: config.Receives}
	region := config.Memory
	if region == nil {
		var err error
		// The byte behind the memory is for receives of length 0: DOCA needs a buffer for them.
		if x.memory, err = allocate(config.MemorySize + 1); err != nil {
			return nil, err
		}
		x.empty = uint32(config.MemorySize)
		region = memory.Wrap(x.memory)
		x.bytes = x.memory[:config.MemorySize:config.MemorySize]
	} else {
		x.bytes = region.Bytes()
		x.empty = uint32(len(x.bytes) - 1)
	}
	counted := false
	err := x.open(ctx, func() (bool, error) {
		if c.gone || c.over || c.ended.Load() {
			return true, c.errNotConnected()
		}
		if c.consumers >= c.endpoint.capabilities.MaxConsumers {
			return true, status.Errorf(status.Full,
				"the connection has the maximum of %d consumers", c.consumers)
		}
		var err error
		x.doca, err = doca.NewConsumer(doca.ConsumerConfig{Device: c.endpoint.device,
			Connection: c.handle, Memory: region.Bytes(), Receives: config.Receives,
			ImmediateLength: config.ImmediateLength, Wait: c.endpoint.capabilities.CanWait})
		if err == nil {
			x.context = x.doca
			c.consumers++
			counted = true
		}
		return true, err
	})
	if err == nil {
		var id uint32
		if id, err = x.doca.ID(); err != nil {
			_ = x.close()
		}
		x.id = comch.ConsumerID(id)
	}
	if err != nil && counted {
		_ = c.endpoint.do(func() error { c.consumers--; return nil })
	}
	if err != nil {
		return nil, err
	}
	return x, nil
}

func (x *consumer) ID() comch.ConsumerID { return x.id }

func (x *consumer) Memory() []byte { return x.bytes }

func (x *consumer) PostReceive(offset, length uint32, userData uint64) error {
	size := uint32(len(x.bytes))
	if offset > size || length > size-offset {
		return status.Errorf(status.InvalidValue,
			"post receive of %d bytes at %d: the memory has %d bytes", length, offset, size)
	}
	if x.stopped || x.isOver() {
		return status.Errorf(status.BadState, "post receive: the consumer has been stopped")
	}
	if !x.doca.PostReceive(offset, length, min(offset, x.empty), userData) {
		return status.Full
	}
	return nil
}

// Flush leaves receives to the next Poll, which takes them along at no cost, unless the peer may
// soon run out of posted ones.
func (x *consumer) Flush() {
	if x.doca.Posted() <= x.receives/2 {
		x.doca.Post()
	}
}

func (x *consumer) Poll(received []comch.Received) int {
	if x.connection.aborted.Load() {
		return 0
	}
	x.doca.Turn(len(received))
	n := 0
	for n < len(received) && x.doca.Next((*doca.Received)(&received[n])) {
		n++
	}
	return n
}

func (x *consumer) State() progress.State {
	if x.stopped || x.isOver() || x.doca.HasFailed() {
		return progress.Idle
	}
	return progress.Running
}

// Err implements comch.LateConsumer.
func (x *consumer) Err() error {
	err := x.doca.Failed()
	if x.stopped || x.isOver() || isPeerGone(err) {
		return nil
	}
	return err
}

// Arm implements progress.Waiter. When the peer has ended the connection, only what has arrived is
// work, and nothing follows.
func (x *consumer) Arm() bool {
	switch {
	case x.connection.aborted.Load():
		return true
	case x.isOver():
		x.doca.Turn(budget)
		return x.doca.IsEmpty()
	}
	return x.doca.Arm()
}

func (x *consumer) Disarm() { x.doca.Clear() }

func (x *consumer) Clear() {
	x.doca.Clear()
	x.waker.clear()
}

func (x *consumer) Stop() {
	if !x.stopped {
		x.stopped = true
		_ = x.doca.StopReceiving() // Close tries again, and reports it
	}
}

func (x *consumer) Close() error {
	x.stopped = true
	err := x.close()
	x.once.Do(func() {
		_ = x.connection.endpoint.do(func() error { x.connection.consumers--; return nil })
		x.connection.disown()
	})
	return err
}
