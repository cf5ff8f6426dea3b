// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func (c *connection) NewConsumer(ctx context.Context, config comch.ConsumerConfig,
) (comch.Consumer, error) {
	own := config.Memory
	if own != nil {
		if config.MemorySize != 0 {
			return nil, status.Errorf(status.InvalidValue,
				"create consumer: it has memory already, and MemorySize is %d, not 0",
				config.MemorySize)
		}
		if !own.Mapped() || own.Untrusted() {
			return nil, status.Errorf(status.NotSupported,
				"create consumer: its memory belongs to a device or another process")
		}
		config.MemorySize = int(min(own.Len(), math.MaxInt))
	}
	created, err := c.openConsumer(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("create consumer with %d receives and %d bytes: %w",
			config.Receives, config.MemorySize, err)
	}
	if own != nil {
		return &copyingConsumer{consumer: created, memory: own.Bytes()}, nil
	}
	return created, nil
}

// openConsumer registers the consumer before it announces it: the peer's producers may arrive
// before this goroutine has seen the reply.
func (c *connection) openConsumer(ctx context.Context, config comch.ConsumerConfig,
) (*consumer, error) {
	layout, err := planRing(config, c.limits)
	if err != nil {
		return nil, err
	}
	id, err := c.local.newID()
	if err != nil {
		return nil, err
	}
	bell, button, err := newDoorbell(&c.cleanup)
	if err != nil {
		return nil, err
	}
	created := &consumer{connection: c, id: comch.ConsumerID(id)}
	created.open(bell)
	passed := descriptors{list: []int{button}}
	if c.role == serverRole {
		err = created.allocate(layout, &passed)
	}
	if err == nil {
		err = c.local.addConsumer(created.id,
			localConsumer{&created.lifecycle, &created.producers}, c.limits.MaxConsumers)
	}
	if err != nil {
		passed.closeAll()
		return nil, errors.Join(err, created.release())
	}
	if err := created.announce(ctx, layout, passed); err != nil {
		return nil, errors.Join(err, created.Close())
	}
	return created, nil
}

// allocate allocates the ring of a consumer of the server, and adds a descriptor of it to passed.
func (c *consumer) allocate(layout ringLayout, passed *descriptors) error {
	region, err := c.connection.ringMemory(layout, -1)
	if err != nil {
		return err
	}
	c.region = region
	dup, err := duplicate(region.Descriptor())
	if err != nil {
		return err
	}
	passed.add(dup)
	return nil
}

// announce announces the consumer to the peer and makes it run. On the client, the reply carries
// the ring's memory.
func (c *consumer) announce(ctx context.Context, layout ringLayout, passed descriptors) error {
	announcement := frame{kind: frameOpenConsumer, fields: [maxFields]uint32{
		uint32(c.id), uint32(layout.receives), uint32(layout.memorySize), uint32(layout.immediate)}}
	replied, err := c.connection.request(ctx, announcement, passed)
	if err != nil {
		return err
	}
	if c.connection.role == clientRole {
		if c.region, err = c.connection.ringMemory(layout, replied); err != nil {
			c.connection.cleanup.close(replied)
			return err
		}
	} else {
		c.connection.cleanup.close(replied)
	}
	c.ring = newReceiveRing(viewRing(c.region.Bytes(), layout), layout, &c.producers.highestID)
	if !c.setRunning() {
		return c.connection.notConnected("start consumer")
	}
	return nil
}

func (c *connection) NewProducer(ctx context.Context, consumer comch.ConsumerID,
) (comch.Producer, error) {
	id, err := c.local.newID()
	if err != nil {
		return nil, fmt.Errorf("create producer for consumer %d: %w", consumer, err)
	}
	return c.NewProducerWithID(ctx, consumer, id)
}

// ProducerIDs is implemented by the connections of this provider. A producer of DOCA sends to any
// consumer of its connection under one ID, so it consists of several producers with that ID.
type ProducerIDs interface {
	// NewProducerID returns an ID that no other object of the connection has.
	NewProducerID() (uint32, error)
	// NewProducerWithID is like NewProducer, but gives the producer an ID from NewProducerID. The
	// producers of one ID must be for different consumers, and created one after the other.
	NewProducerWithID(ctx context.Context, consumer comch.ConsumerID, id uint32) (comch.Producer,
		error)
}

func (c *connection) NewProducerID() (uint32, error) { return c.local.newID() }

func (c *connection) NewProducerWithID(ctx context.Context, consumer comch.ConsumerID, id uint32,
) (comch.Producer, error) {
	created, err := c.openProducer(ctx, consumer, id)
	if err != nil {
		return nil, fmt.Errorf("create producer for consumer %d: %w", consumer, err)
	}
	return created, nil
}

// openProducer waits for the reply: the peer can wake the producer only after it has the doorbell.
func (c *connection) openProducer(ctx context.Context, consumer comch.ConsumerID, id uint32,
) (*producer, error) {
	bell, button, err := newDoorbell(&c.cleanup)
	if err != nil {
		return nil, err
	}
	passed := descriptors{list: []int{button}}
	created := &producer{connection: c, id: id}
	created.open(bell)
	if err := c.local.addProducer(&created.lifecycle, c.limits.MaxProducers); err != nil {
		passed.closeAll()
		return nil, errors.Join(err, bell.close())
	}
	if created.consumer, err = c.remote.addProducer(consumer, &created.lifecycle); err != nil {
		passed.closeAll()
		c.local.removeProducer(&created.lifecycle)
		return nil, errors.Join(err, bell.close())
	}
	open := frame{kind: frameOpenProducer, fields: [maxFields]uint32{id, uint32(consumer)}}
	replied, err := c.request(ctx, open, passed)
	if err == nil {
		c.cleanup.close(replied)
		if created.setRunning() {
			return created, nil
		}
		err = c.notConnected("start producer")
	}
	return nil, errors.Join(err, created.Close())
}
