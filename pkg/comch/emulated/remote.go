// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// handleOpenConsumer adds a consumer of the peer. A consumer beyond the limits is rejected without
// ending the connection.
func (c *connection) handleOpenConsumer(f *frame, received *descriptors) error {
	id := comch.ConsumerID(f.fields[0])
	if !c.role.other().isOwnerOf(uint32(id)) {
		return violation("consumer id %d does not belong to the peer", id)
	}
	consumer, err := c.admitConsumer(f, received)
	if err != nil {
		c.enqueue(textFrame(frameReply, err, uint32(id)), descriptors{})
		return nil
	}
	var passed descriptors
	if c.role == serverRole { // the client needs the ring's memory
		dup, err := duplicate(consumer.region.Descriptor())
		if err != nil {
			c.remote.release(consumer) // it was never used
			c.enqueue(textFrame(frameReply, err, uint32(id)), descriptors{})
			return nil
		}
		passed.add(dup)
	}
	if !c.remote.add(consumer) {
		c.remote.release(consumer) // it was never used
		passed.closeAll()
		return violation("consumer %d already exists", id)
	}
	c.consumerEvent(comch.ConsumerEvent{ID: id, Created: true})
	c.enqueue(textFrame(frameReply, nil, uint32(id)), passed)
	return nil
}

// admitConsumer creates a consumer from the peer's announcement. The server allocates the ring's
// memory; the client receives it with the frame.
func (c *connection) admitConsumer(f *frame, received *descriptors) (*remoteConsumer, error) {
	config := comch.ConsumerConfig{
		Receives:        int(f.fields[1]),
		MemorySize:      int(f.fields[2]),
		ImmediateLength: int(f.fields[3]),
	}
	layout, err := planRing(config, c.limits)
	if err != nil {
		return nil, err
	}
	if c.remote.isFull() {
		return nil, errFull("consumers", c.limits.MaxConsumers)
	}
	if c.full != nil {
		return nil, c.full
	}
	button, ok := received.next()
	if !ok {
		return nil, status.Errorf(status.InvalidValue, "consumer has no doorbell")
	}
	if err := checkButton(button); err != nil {
		c.cleanup.close(button)
		return nil, err
	}
	ring, _ := received.next() // on the client
	region, err := c.ringMemory(layout, ring)
	if err != nil {
		c.cleanup.close(button)
		c.cleanup.close(ring)
		return nil, err
	}
	return &remoteConsumer{
		id:     comch.ConsumerID(f.fields[0]),
		ring:   newSendRing(viewRing(region.Bytes(), layout), layout.immediate),
		region: region,
		button: button,
	}, nil
}

func (c *connection) handleStopConsumer(f *frame) {
	id := comch.ConsumerID(f.fields[0])
	if c.remote.stop(id) {
		c.consumerEvent(comch.ConsumerEvent{ID: id})
	}
}

func (c *connection) handleCloseConsumer(f *frame) {
	id := comch.ConsumerID(f.fields[0])
	if c.remote.close(id) {
		c.consumerEvent(comch.ConsumerEvent{ID: id})
	}
}

// consumerEvent keeps an event for the application.
func (c *connection) consumerEvent(event comch.ConsumerEvent) {
	c.arrivals.PutBoundedEvent(event, 4*c.limits.MaxConsumers)
}

// handleOpenProducer adds a producer of the peer to one of our consumers.
func (c *connection) handleOpenProducer(f *frame, received *descriptors) error {
	id, consumer := f.fields[0], comch.ConsumerID(f.fields[1])
	if !c.role.other().isOwnerOf(id) {
		return violation("producer id %d does not belong to the peer", id)
	}
	err := c.admitProducer(id, consumer, received)
	c.enqueue(textFrame(frameReply, err, id), descriptors{})
	return nil
}

func (c *connection) admitProducer(id uint32, consumer comch.ConsumerID, received *descriptors,
) error {
	producers := c.local.producersOf(consumer)
	if producers == nil {
		return status.Errorf(status.NotFound, "no consumer %d", consumer)
	}
	if c.full != nil {
		return c.full
	}
	if int(c.remoteProducers.Load()) >= c.limits.MaxProducers {
		return errFull("producers", c.limits.MaxProducers)
	}
	button, ok := received.next()
	if !ok {
		return status.Errorf(status.InvalidValue, "producer %d has no doorbell", id)
	}
	err := checkButton(button)
	if err == nil {
		err = producers.add(id, button)
	}
	if err != nil {
		c.cleanup.close(button)
		return err
	}
	c.remoteProducers.Add(1)
	return nil
}

func (c *connection) handleCloseProducer(f *frame) {
	if producers := c.local.producersOf(comch.ConsumerID(f.fields[1])); producers != nil {
		if button, found := producers.remove(f.fields[0]); found {
			c.remoteProducers.Add(-1)
			c.cleanup.close(button)
		}
	}
}
