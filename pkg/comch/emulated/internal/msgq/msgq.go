// SPDX-License-Identifier: Apache-2.0

// Package msgq emulates DPAs and the message queues that connect them to CPU threads. A DPA is a
// pinned thread of this process; a message queue is a Comch connection of the process to itself.
package msgq

import (
	"context"
	"fmt"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Producer is a producer of the DPA's side of a connection. It adds what a kernel may ask about the
// consumer. The additional methods belong to the producer's thread.
type Producer interface {
	comch.Producer
	// CanSend reports whether the consumer has a receive posted, as far as this side can see.
	CanSend() bool
	// ImmediateLength returns how many bytes of immediate data the consumer accepts.
	ImmediateLength() int
}

// noMemory is the message memory of consumers that receive immediate data only: a ring has at least
// one byte.
const noMemory = 1

// msgq implements comch.MsgQ with a connection of this process to itself. The DPA is its server.
type msgq struct {
	dpa          *dpa
	direction    comch.MsgQDirection
	capabilities comch.Capabilities
	cpuSide      comch.Connection
	dpaSide      comch.Connection

	mu      sync.Mutex
	closed  bool
	objects int // consumers and producers of both sides
}

// New returns a message queue to a DPA from NewDPA. capabilities holds the provider's capabilities,
// within the limits of config. connect connects this process to itself and returns both ends; the
// producers of dpaSide implement Producer.
func New(
	config comch.MsgQConfig, capabilities comch.Capabilities,
	connect func() (cpuSide, dpaSide comch.Connection, err error),
) (comch.MsgQ, error) {
	d, ok := config.DPA.(*dpa)
	if !ok || d == nil {
		return nil, status.Errorf(status.InvalidValue,
			"DPA of type %T was not made by this provider", config.DPA)
	}
	if config.Direction != comch.DPAConsumers && config.Direction != comch.DPAProducers {
		return nil, status.Errorf(status.InvalidValue, "invalid direction %d", config.Direction)
	}
	if err := d.addQueue(); err != nil {
		return nil, err
	}
	cpuSide, dpaSide, err := connect()
	if err != nil {
		d.removeQueue()
		return nil, err
	}
	capabilities.Server, capabilities.Client = false, false
	capabilities.MaxMemorySize, capabilities.MaxBufferLength = 0, 0
	capabilities.ConsumerMemory, capabilities.OpaqueImports = false, false
	return &msgq{dpa: d, direction: config.Direction, capabilities: capabilities, cpuSide: cpuSide,
		dpaSide: dpaSide}, nil
}

// Capabilities returns the provider's capabilities without control path and message memory.
func (q *msgq) Capabilities() comch.Capabilities { return q.capabilities }

// NewConsumer creates a CPU consumer, on queues from the DPA only.
func (q *msgq) NewConsumer(ctx context.Context, config comch.ConsumerConfig,
) (comch.Consumer, error) {
	if config.MemorySize != 0 || config.Memory != nil {
		return nil, status.Errorf(status.InvalidValue,
			"create consumer of message queue: MemorySize is %d and Memory is set: %v, but there is "+
				"no message memory", config.MemorySize, config.Memory != nil)
	}
	if err := q.addObject(comch.DPAProducers); err != nil {
		return nil, fmt.Errorf("create consumer of message queue: %w", err)
	}
	config.MemorySize = noMemory
	created, err := q.cpuSide.NewConsumer(ctx, config)
	if err != nil {
		q.removeObject()
		return nil, err
	}
	return &cpuConsumer{Consumer: created, remove: sync.OnceFunc(q.removeObject)}, nil
}

// NewProducer creates a CPU producer, on queues to the DPA only.
func (q *msgq) NewProducer(ctx context.Context, consumer comch.ConsumerID) (comch.Producer, error) {
	if err := q.addObject(comch.DPAConsumers); err != nil {
		return nil, fmt.Errorf("create producer of message queue: %w", err)
	}
	created, err := q.cpuSide.NewProducer(ctx, consumer)
	if err != nil {
		q.removeObject()
		return nil, err
	}
	return &cpuProducer{Producer: created, remove: sync.OnceFunc(q.removeObject)}, nil
}

// addObject counts a consumer or producer before it is created. It fails unless the queue has the
// direction that the object needs.
func (q *msgq) addObject(need comch.MsgQDirection) error {
	if q.direction != need {
		return status.Errorf(status.NotSupported, "this queue carries messages %v", q.direction)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return status.Errorf(status.BadState, "message queue is closed")
	}
	q.objects++
	return nil
}

func (q *msgq) removeObject() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.objects--
}

// Close disconnects the two sides. A second Close does nothing.
func (q *msgq) Close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil
	}
	if q.objects > 0 {
		return status.Errorf(status.InUse,
			"close message queue: %d consumers and producers are still open", q.objects)
	}
	q.closed = true
	err := q.cpuSide.Close()
	<-q.dpaSide.Done()
	if err == nil {
		err = q.dpaSide.Close()
	}
	q.dpa.removeQueue()
	return err
}

// cpuConsumer is a CPU consumer, of immediate data only.
type cpuConsumer struct {
	comch.Consumer
	remove func()
}

// Memory returns nil: messages have no bytes besides their immediate data.
func (c *cpuConsumer) Memory() []byte { return nil }

// PostReceive accepts only an empty buffer at offset 0.
func (c *cpuConsumer) PostReceive(offset, length uint32, userData uint64) error {
	if offset != 0 || length != 0 {
		return status.Errorf(status.InvalidValue,
			"post receive: %d bytes at offset %d: consumers of message queues have no buffers",
			length, offset)
	}
	return c.Consumer.PostReceive(0, 0, userData)
}

// Close closes the consumer and stops counting it, even if closing fails.
func (c *cpuConsumer) Close() error {
	defer c.remove()
	return c.Consumer.Close()
}

// cpuProducer is a CPU producer, of immediate data only.
type cpuProducer struct {
	comch.Producer
	remove func()
}

// Send accepts only an empty message.
func (p *cpuProducer) Send(message, immediate []byte) error {
	if len(message) > 0 {
		return status.Errorf(status.InvalidValue,
			"send: message of %d bytes: message queues carry immediate data only", len(message))
	}
	return p.Producer.Send(nil, immediate)
}

// Close closes the producer and stops counting it, even if closing fails.
func (p *cpuProducer) Close() error {
	defer p.remove()
	return p.Producer.Close()
}
