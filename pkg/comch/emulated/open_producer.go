package emulated

import (
	"context"
	"errors"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/comch"
)

func (c *connection) NewProducer(ctx context.Context, consumer comch.ConsumerID) (comch.Producer, error) {
	created, err := c.openProducer(ctx, consumer)
	if err != nil {
		return nil, fmt.Errorf("create producer to consumer %d: %w", consumer, err)
	}
	return created, nil
}

// openProducer waits until the peer knows the producer: only then can it be
// woken.
func (c *connection) openProducer(ctx context.Context, consumer comch.ConsumerID) (*producer, error) {
	id, err := c.local.takeID()
	if err != nil {
		return nil, err
	}
	bell, push, err := newDoorbell(&c.disposal)
	if err != nil {
		return nil, err
	}
	passed := descriptors{list: [maxDescriptors]int{push}, count: 1}
	created := &producer{connection: c, id: id}
	created.start(bell)
	if err := c.local.addProducer(created, c.limits.MaxProducers); err != nil {
		passed.closeAll()
		return nil, errors.Join(err, bell.close())
	}
	if err := c.remote.attach(consumer, created); err != nil {
		passed.closeAll()
		c.local.removeProducer(id)
		return nil, errors.Join(err, bell.close())
	}
	open := frame{kind: frameOpenProducer, fields: [maxFields]uint32{id, uint32(consumer)}}
	answered, err := c.request(ctx, open, passed)
	if err == nil {
		closeDescriptor(answered)
		if created.run() {
			return created, nil
		}
		err = c.notConnected("start producer")
	}
	return nil, errors.Join(err, created.Close())
}
