// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/fault"
	"github.com/zc-relay/zc-relay/pkg/memory"
)

type connection struct {
	comch.Connection
	points *points

	mu sync.Mutex // guards delayed
	// delayed holds messages whose receiver has left while they were held back.
	delayed [][]byte
}

// newConnection returns inner with hooks. It is a comch.PlainExporter if inner is.
func newConnection(inner comch.Connection, p *points) comch.Connection {
	c := &connection{Connection: inner, points: p}
	if exporter, is := inner.(comch.PlainExporter); is {
		return &plainExporter{connection: c, inner: exporter}
	}
	return c
}

// plainExporter is a connection whose peer may be a program written for DOCA.
type plainExporter struct {
	*connection
	inner comch.PlainExporter
}

// ExportPlain is ExportMemory with a descriptor as libdoca makes it.
func (e *plainExporter) ExportPlain(ctx context.Context, region *memory.Region,
	access memory.Access) ([]byte, error) {
	if err := e.enterExport(ctx, region); err != nil {
		return nil, err
	}
	return e.inner.ExportPlain(ctx, region, access)
}

// HasEnded reports whether the peer had gone by a time.
func (c *connection) HasEnded(by time.Time) bool { return comch.HasEnded(c.Connection, by) }

// Send sends one control message.
func (c *connection) Send(ctx context.Context, message []byte) error {
	hit, err := c.points.send.Enter(ctx, c.Done(), uint64(len(message)))
	if err != nil {
		return fmt.Errorf("send control message: %w", err)
	}
	switch hit.Action {
	case fault.Drop:
		c.Abort()
		return fmt.Errorf("send control message: %w", hit.Lost())
	case fault.Corrupt:
		message = slices.Clone(message)
		hit.Corrupt(message)
	case fault.Duplicate:
		if err := c.Connection.Send(ctx, message); err != nil {
			return err
		}
	}
	return c.Connection.Send(ctx, message)
}

// Receive waits for the next control message.
func (c *connection) Receive(ctx context.Context) ([]byte, error) {
	if c.points.receive == nil {
		return c.Connection.Receive(ctx)
	}
	if message := c.takeDelayed(); message != nil {
		return message, nil
	}
	message, err := c.Connection.Receive(ctx)
	if err != nil {
		return nil, err
	}
	return c.received(ctx, message)
}

// received does to a message what a fault wants.
func (c *connection) received(ctx context.Context, message []byte) ([]byte, error) {
	hit, err := c.points.receive.Enter(ctx, c.Done(), uint64(len(message)))
	switch {
	case err != nil:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.delayed = append(c.delayed, message)
		return nil, fmt.Errorf("receive control message: %w", err)
	case hit.Action == fault.Drop:
		c.Abort()
		return nil, fmt.Errorf("receive control message: %w", hit.Lost())
	case hit.Action == fault.Corrupt:
		hit.Corrupt(message)
	}
	return message, nil
}

// Next waits for the next control message or consumer event.
func (c *connection) Next(ctx context.Context) (comch.Arrival, error) {
	if c.points.receive == nil {
		return c.Connection.Next(ctx)
	}
	if message := c.takeDelayed(); message != nil {
		return comch.Arrival{Message: message}, nil
	}
	next, err := c.Connection.Next(ctx)
	if err == nil && next.IsMessage() {
		next.Message, err = c.received(ctx, next.Message)
	}
	return next, err
}

// takeDelayed returns the oldest delayed message, or nil.
func (c *connection) takeDelayed() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.delayed) == 0 {
		return nil
	}
	message := c.delayed[0]
	c.delayed = c.delayed[1:]
	return message
}

// NewConsumer creates a consumer.
func (c *connection) NewConsumer(ctx context.Context, config comch.ConsumerConfig) (comch.Consumer,
	error) {
	if _, err := c.points.newConsumer.Enter(ctx, c.Done(), uint64(config.MemorySize)); err != nil {
		return nil, fmt.Errorf("create consumer: %w", err)
	}
	inner, err := c.Connection.NewConsumer(ctx, config)
	if err != nil || c.points.consumerPoll == nil && c.points.consumerPost == nil {
		return inner, err
	}
	hooked, err := newConsumer(inner, c.points, config.Receives)
	if err != nil {
		return nil, errors.Join(err, inner.Close())
	}
	late, isLate := inner.(comch.LateConsumer)
	if isLate || c.points.consumerPost != nil {
		return &lateConsumer{consumer: hooked, inner: late, point: c.points.consumerPost}, nil
	}
	return hooked, nil
}

// NewProducer creates a producer.
func (c *connection) NewProducer(ctx context.Context, id comch.ConsumerID) (comch.Producer, error) {
	if _, err := c.points.newProducer.Enter(ctx, c.Done(), 0); err != nil {
		return nil, fmt.Errorf("create producer for consumer %d: %w", id, err)
	}
	inner, err := c.Connection.NewProducer(ctx, id)
	if err != nil || c.points.producerSend == nil && c.points.producerComplete == nil {
		return inner, err
	}
	hooked, err := newProducer(inner, c)
	if err != nil {
		return nil, errors.Join(err, inner.Close())
	}
	late, isLate := inner.(comch.LateProducer)
	if isLate || c.points.producerComplete != nil {
		return &lateProducer{producer: hooked, inner: late, point: c.points.producerComplete}, nil
	}
	return hooked, nil
}

// ExportMemory lets the peer import a region.
func (c *connection) ExportMemory(ctx context.Context, region *memory.Region,
	access memory.Access) ([]byte, error) {
	if err := c.enterExport(ctx, region); err != nil {
		return nil, err
	}
	return c.Connection.ExportMemory(ctx, region, access)
}

func (c *connection) enterExport(ctx context.Context, region *memory.Region) error {
	if _, err := c.points.export.Enter(ctx, c.Done(), region.Len()); err != nil {
		return fmt.Errorf("export %d bytes of memory: %w", region.Len(), err)
	}
	return nil
}

// ImportMemory imports a region of the peer.
func (c *connection) ImportMemory(descriptor []byte) (*memory.Region, memory.Access, error) {
	if err := c.enterImport(); err != nil {
		return nil, 0, err
	}
	return c.Connection.ImportMemory(descriptor)
}

// ImportMemoryFor implements comch.DeviceImporter as far as the inner connection does.
func (c *connection) ImportMemoryFor(device memory.Device, descriptor []byte) (*memory.Region,
	memory.Access, error) {
	if err := c.enterImport(); err != nil {
		return nil, 0, err
	}
	return comch.ImportMemoryFor(c.Connection, device, descriptor)
}

func (c *connection) enterImport() error {
	_, err := c.points.imports.Enter(context.Background(), c.Done(), 0)
	if err != nil {
		return fmt.Errorf("import memory: %w", err)
	}
	return nil
}
