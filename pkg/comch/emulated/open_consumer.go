package emulated

import (
	"context"
	"errors"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func (c *connection) NewConsumer(ctx context.Context, config comch.ConsumerConfig) (comch.Consumer, error) {
	created, err := c.openConsumer(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("create consumer with %d receives and %d bytes: %w", config.Receives, config.MemorySize, err)
	}
	return created, nil
}

// openConsumer enters the consumer before the peer hears of it: the peer's
// producers may come before the peer's answer has been looked at.
func (c *connection) openConsumer(ctx context.Context, config comch.ConsumerConfig) (*consumer, error) {
	layout, err := planRing(config, c.limits)
	if err != nil {
		return nil, err
	}
	id, err := c.local.takeID()
	if err != nil {
		return nil, err
	}
	bell, push, err := newDoorbell(&c.disposal)
	if err != nil {
		return nil, err
	}
	created := &consumer{connection: c, id: comch.ConsumerID(id)}
	created.start(bell)
	passed := descriptors{list: [maxDescriptors]int{push}, count: 1}
	if c.role == serverRole {
		err = created.allocate(layout, &passed)
	}
	if err == nil {
		err = c.local.addConsumer(created, c.limits.MaxConsumers)
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

// allocate makes the ring of a consumer on the server, and a descriptor of it
// for the client.
func (c *consumer) allocate(layout ringLayout, passed *descriptors) error {
	region, err := c.connection.ringMemory(layout, nil)
	if err != nil {
		return err
	}
	c.region = region
	twin, err := duplicate(region.Descriptor())
	if err != nil {
		return err
	}
	passed.add(twin)
	return nil
}

// announce tells the peer of the consumer and lets it run. On the client the
// answer brings the ring's memory.
func (c *consumer) announce(ctx context.Context, layout ringLayout, passed descriptors) error {
	fields := [maxFields]uint32{uint32(c.id), uint32(layout.receives), uint32(layout.memorySize), uint32(layout.immediate)}
	answered, err := c.connection.request(ctx, frame{kind: frameOpenConsumer, fields: fields}, passed)
	if err != nil {
		return err
	}
	if c.connection.role == clientRole {
		if c.region, err = importAnsweredRing(answered, layout); err != nil {
			return err
		}
	} else {
		closeDescriptor(answered)
	}
	c.ring = newReceiveRing(viewRing(c.region.Bytes(), layout), layout, &c.audience.highest)
	if !c.run() {
		return c.connection.notConnected("start consumer")
	}
	return nil
}

func importAnsweredRing(descriptor int, layout ringLayout) (*memory.Region, error) {
	if descriptor < 0 {
		return nil, status.Errorf(status.InvalidValue, "the server sent no ring memory")
	}
	region, err := importRing(descriptor, layout)
	if err != nil {
		closeDescriptor(descriptor)
		return nil, err
	}
	return region, nil
}

// release frees what the consumer owns.
func (c *consumer) release() error {
	disposal := &c.connection.disposal
	for _, m := range c.audience.close() {
		disposal.close(m.push)
	}
	c.ring.withdraw() // before the pages go
	c.ring.shared = sharedRing{}
	err := c.bell.close()
	if c.region == nil {
		return err
	}
	role, region := c.connection.role, c.region
	disposal.add(func() {
		size := int(region.Len())
		freeRing(role, region)
		if role == serverRole {
			c.connection.remote.giveBack(size)
		}
	})
	return err
}
