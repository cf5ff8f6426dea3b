package emulated

import (
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// admitConsumer builds the peer's consumer from its announcement: the server
// makes the ring's memory, the client finds it in the frame.
func (c *connection) admitConsumer(f *frame, received *descriptors) (*remoteConsumer, error) {
	config := comch.ConsumerConfig{Receives: int(f.fields[1]), MemorySize: int(f.fields[2]), ImmediateLength: int(f.fields[3])}
	layout, err := planRing(config, c.limits)
	if err != nil {
		return nil, err
	}
	if c.remote.full() {
		return nil, errNoRoom("consumers", c.limits.MaxConsumers)
	}
	push, ok := received.take()
	if !ok {
		return nil, status.Errorf(status.InvalidValue, "the consumer came without a doorbell")
	}
	if err := checkPush(push); err != nil {
		closeDescriptor(push)
		return nil, err
	}
	region, err := c.ringMemory(layout, received)
	if err != nil {
		closeDescriptor(push)
		return nil, err
	}
	return &remoteConsumer{
		id:     comch.ConsumerID(f.fields[0]),
		ring:   newSendRing(viewRing(region.Bytes(), layout), layout.immediate),
		region: region,
		push:   push,
	}, nil
}

// ringMemory allocates a ring on the server and maps what the server has sent
// on the client. Either way it counts against the limit.
func (c *connection) ringMemory(layout ringLayout, received *descriptors) (*memory.Region, error) {
	err := c.remote.reserve(layout.total)
	if err != nil {
		c.disposal.settle(disposalTimeout) // rings may be about to be given back
		err = c.remote.reserve(layout.total)
	}
	if err != nil {
		return nil, err
	}
	region, err := c.makeRing(layout, received)
	if err != nil {
		c.remote.giveBack(layout.total)
	}
	return region, err
}

func (c *connection) makeRing(layout ringLayout, received *descriptors) (*memory.Region, error) {
	if c.role == serverRole {
		return allocateRing(layout)
	}
	descriptor, ok := received.take()
	if !ok {
		return nil, status.Errorf(status.InvalidValue, "the server sent no ring memory")
	}
	region, err := importRing(descriptor, layout)
	if err != nil {
		closeDescriptor(descriptor)
		return nil, err
	}
	return region, nil
}
