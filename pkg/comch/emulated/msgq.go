package emulated

import (
	"context"
	"fmt"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// noMemory is the message memory of consumers that receive immediate data
// only: a ring has at least one byte.
const noMemory = 1

// msgq implements comch.MsgQ by a connection of this process to itself, the
// DPA being the server.
type msgq struct {
	dpa       *dpa
	direction comch.MsgQDirection
	limits    Limits
	cpuSide   *connection
	dpaSide   *connection

	mu      sync.Mutex
	closed  bool
	objects int // consumers and producers of both sides
}

func (p *provider) NewMsgQ(config comch.MsgQConfig) (comch.MsgQ, error) {
	q, err := p.newMsgQ(config)
	if err != nil {
		return nil, fmt.Errorf("create message queue %v: %w", config.Direction, err)
	}
	return q, nil
}

func (p *provider) newMsgQ(config comch.MsgQConfig) (*msgq, error) {
	d, ok := config.DPA.(*dpa)
	if !ok || d == nil {
		return nil, status.Errorf(status.InvalidValue, "there is no DPA of this provider")
	}
	if config.Direction != comch.DPAConsumers && config.Direction != comch.DPAProducers {
		return nil, status.Errorf(status.InvalidValue, "direction %d does not exist", config.Direction)
	}
	limits := p.limits
	setDefault(&config.MaxConsumers, limits.MaxConsumers)
	setDefault(&config.MaxProducers, limits.MaxProducers)
	if err := checkCount("MaxConsumers", config.MaxConsumers, limits.MaxConsumers); err != nil {
		return nil, err
	}
	if err := checkCount("MaxProducers", config.MaxProducers, limits.MaxProducers); err != nil {
		return nil, err
	}
	limits.MaxConsumers, limits.MaxProducers = config.MaxConsumers, config.MaxProducers
	if err := d.attach(); err != nil {
		return nil, err
	}
	q := &msgq{dpa: d, direction: config.Direction, limits: limits}
	var err error
	if q.cpuSide, q.dpaSide, err = p.connectToSelf(limits); err != nil {
		d.detach()
		return nil, err
	}
	return q, nil
}

func (q *msgq) Capabilities() comch.Capabilities {
	c := q.limits.capabilities()
	c.Server, c.Client = false, false
	c.MaxMemorySize, c.MaxBufferLength = 0, 0
	return c
}

// enter counts an object that is about to be made. need is the direction in
// which there are such objects.
func (q *msgq) enter(need comch.MsgQDirection) error {
	if q.direction != need {
		return status.Errorf(status.NotSupported, "messages of this queue go %v", q.direction)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return status.Errorf(status.BadState, "the message queue is closed")
	}
	q.objects++
	return nil
}

func (q *msgq) leave() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.objects--
}

func (q *msgq) Close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil
	}
	if q.objects > 0 {
		return status.Errorf(status.InUse, "close message queue: it has %d consumers and producers", q.objects)
	}
	q.closed = true
	err := q.cpuSide.Close()
	<-q.dpaSide.Done()
	if err == nil {
		err = q.dpaSide.Close()
	}
	q.dpa.detach()
	return err
}

func (q *msgq) NewConsumer(ctx context.Context, config comch.ConsumerConfig) (comch.Consumer, error) {
	if config.MemorySize != 0 {
		return nil, status.Errorf(status.InvalidValue, "create consumer of message queue: it has no memory, %d bytes are too many", config.MemorySize)
	}
	if err := q.enter(comch.DPAProducers); err != nil {
		return nil, fmt.Errorf("create consumer of message queue: %w", err)
	}
	config.MemorySize = noMemory
	made, err := q.cpuSide.NewConsumer(ctx, config)
	if err != nil {
		q.leave()
		return nil, err
	}
	return &msgqConsumer{Consumer: made, leave: sync.OnceFunc(q.leave)}, nil
}

func (q *msgq) NewProducer(ctx context.Context, consumer comch.ConsumerID) (comch.Producer, error) {
	if err := q.enter(comch.DPAConsumers); err != nil {
		return nil, fmt.Errorf("create producer of message queue: %w", err)
	}
	made, err := q.cpuSide.NewProducer(ctx, consumer)
	if err != nil {
		q.leave()
		return nil, err
	}
	return &msgqProducer{Producer: made, leave: sync.OnceFunc(q.leave)}, nil
}

// msgqConsumer is a CPU consumer of immediate data.
type msgqConsumer struct {
	comch.Consumer
	leave func()
}

func (c *msgqConsumer) Memory() []byte { return nil }

func (c *msgqConsumer) PostReceive(offset, length uint32, userData uint64) error {
	if offset != 0 || length != 0 {
		return status.Errorf(status.InvalidValue, "post receive: consumers of message queues have no buffers, %d bytes at offset %d were posted",
			length, offset)
	}
	return c.Consumer.PostReceive(0, 0, userData)
}

func (c *msgqConsumer) Close() error {
	defer c.leave()
	return c.Consumer.Close()
}

// msgqProducer is a CPU producer of immediate data.
type msgqProducer struct {
	comch.Producer
	leave func()
}

func (p *msgqProducer) Send(message, immediate []byte) error {
	if len(message) > 0 {
		return status.Errorf(status.InvalidValue, "send: message queues carry immediate data only, the message has %d bytes", len(message))
	}
	return p.Producer.Send(nil, immediate)
}

func (p *msgqProducer) Close() error {
	defer p.leave()
	return p.Producer.Close()
}
