// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"errors"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// bounceMemory is the memory of a session's bounce buffers, one per slot of each queue.
type bounceMemory struct {
	channel *channelCommon
	device  dma.Device
	region  *memory.Region
	client  dma.Registration
	buffers dma.Registration
	queue   uint64 // bytes per queue
	charged int64  // to the channel and the relay
}

// newBounceMemory allocates bounce buffers for a configuration, and lets the DMA device reach them
// and the client's memory. If it fails, it returns what could not be released, to be released
// later.
func (c *channelCommon) newBounceMemory(
	device dma.Device, m *controlmsg.ConfigureDataPath, limits *Limits, client *memory.Region,
	access memory.Access,
) (*bounceMemory, error) {
	b := &bounceMemory{channel: c, device: device,
		queue: uint64(m.Depth) * uint64(m.BufferSize)}
	size := b.queue * uint64(m.QueueCount)
	b.charged = int64(size)
	ofChannel, ofAll := c.bounced.Add(b.charged), c.relay.bounced.Add(b.charged)
	limit, sharers := limits.MaxBounceMemory, "all sessions of the channel together may use %d "+
		"(limits.bounce_memory of the relay's channel)"
	isExceeded := uint64(ofChannel) > limit
	if most := c.relay.maxBounced.Load(); !isExceeded && uint64(ofAll) > most {
		limit, sharers = most, "all channels together may use %d (limits.bounce_memory of the relay)"
		isExceeded = true
	}
	fail := func(err error) (*bounceMemory, error) {
		if unreleased := b.release(); unreleased != nil {
			return b, errors.Join(err, unreleased)
		}
		return nil, err
	}
	if isExceeded {
		return fail(status.Errorf(status.NoMemory,
			"%d queues of depth %d and buffers of %d bytes need %d bytes of bounce buffers: "+sharers,
			m.QueueCount, m.Depth, m.BufferSize, size, limit))
	}
	var err error
	if b.region, err = memory.Alloc("zc-relay bounce", size); err != nil {
		return fail(fmt.Errorf("allocate bounce buffers: %w", err))
	}
	if b.buffers, err = device.Register(b.region, memory.LocalWrite); err != nil {
		c.relay.dmaDevices.doubt(c.id.Device, err)
		return fail(fmt.Errorf("register bounce buffers for DMA: %w", err))
	}
	rights := access & (memory.PCIRead | memory.PCIWrite)
	if b.client, err = device.Register(client, rights); err != nil {
		return fail(fmt.Errorf("register the client's memory for DMA: %w", err))
	}
	return b, nil
}

// lane returns the configuration of a queue's bounce buffers. The caller owns the engine in it.
func (b *bounceMemory) lane(queue, depth int) (*datapath.BounceConfig, error) {
	engine, err := b.device.NewEngine(depth)
	if err != nil {
		return nil, fmt.Errorf("create the DMA engine of the bounce buffers: %w", err)
	}
	return &datapath.BounceConfig{Engine: engine, Client: b.client, Buffers: b.buffers,
		Offset: uint64(queue) * b.queue}, nil
}

// release releases the bounce buffers. Nothing may use them any more. After an error, it can be
// called again.
func (b *bounceMemory) release() error {
	for _, registration := range []*dma.Registration{&b.client, &b.buffers} {
		if *registration == nil {
			continue
		}
		if err := (*registration).Deregister(); err != nil {
			return fmt.Errorf("deregister memory from DMA device %s: %w", b.device.Name(), err)
		}
		*registration = nil
	}
	var err error
	if b.region != nil {
		err = b.region.Close()
		b.region = nil
	}
	b.channel.bounced.Add(-b.charged)
	b.channel.relay.bounced.Add(-b.charged)
	b.charged = 0
	return err
}
