package emulated

import (
	"context"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// dpaConsumer implements comch.DPAConsumer.
type dpaConsumer struct {
	queue    *msgq
	data     comch.Consumer
	receives int
	acked    int // receives that have not completed
	closed   bool
}

func (q *msgq) NewDPAConsumer(ctx context.Context, receives int) (comch.DPAConsumer, error) {
	c, err := q.newDPAConsumer(ctx, receives)
	if err != nil {
		return nil, fmt.Errorf("create DPA consumer with %d receives: %w", receives, err)
	}
	return c, nil
}

func (q *msgq) newDPAConsumer(ctx context.Context, receives int) (*dpaConsumer, error) {
	if err := q.enter(comch.DPAConsumers); err != nil {
		return nil, err
	}
	data, err := q.dpaSide.NewConsumer(ctx, comch.ConsumerConfig{Receives: receives, MemorySize: noMemory})
	if err != nil {
		q.leave()
		return nil, err
	}
	c := &dpaConsumer{queue: q, data: data, receives: receives}
	q.dpa.call(func() { err = q.dpa.engine.AddWaiter(data) })
	if err != nil {
		_ = data.Close() // err says more
		q.leave()
		return nil, err
	}
	return c, nil
}

func (c *dpaConsumer) ID() comch.ConsumerID { return c.data.ID() }

func (c *dpaConsumer) Ack(messages int) error {
	if messages < 1 {
		return status.Errorf(status.InvalidValue, "ack: %d messages", messages)
	}
	if messages > c.receives-c.acked {
		return status.Errorf(status.Full, "ack: %d more messages, the queue of %d has room for %d", messages, c.receives, c.receives-c.acked)
	}
	for range messages {
		if err := c.data.PostReceive(0, 0, 0); err != nil {
			return fmt.Errorf("ack: %w", err)
		}
		c.acked++
	}
	c.data.Flush()
	return nil
}

func (c *dpaConsumer) Poll(received []comch.Received) int {
	n := c.data.Poll(received)
	c.acked -= n
	return n
}

func (c *dpaConsumer) Close() error {
	var err error
	c.queue.dpa.call(func() {
		if c.closed {
			return
		}
		c.closed = true
		c.queue.dpa.engine.RemoveWaiter(c.data)
		err = c.data.Close()
		c.queue.leave()
	})
	return err
}
