package emulated

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/progress"
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

// release frees the consumer's resources.
func (c *consumer) release() error {
	cleanup := &c.connection.cleanup
	for _, p := range c.producers.close() {
		c.connection.remoteProducers.Add(-1)
		cleanup.close(p.button)
	}
	c.ring.revoke() // before its pages are freed
	c.ring.shared = sharedRing{}
	err := c.bell.close()
	if c.region != nil {
		cleanup.free(c.connection.role, c.region)
	}
	return err
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
	if err := c.local.addProducer(created, c.limits.MaxProducers); err != nil {
		passed.closeAll()
		return nil, errors.Join(err, bell.close())
	}
	if err := c.remote.addProducer(consumer, created); err != nil {
		passed.closeAll()
		c.local.removeProducer(created)
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

// lifecycle is the state of a consumer or producer, and the doorbell that wakes its thread. Other
// goroutines can stop it.
type lifecycle struct {
	state atomic.Int32 // a progress.State
	bell  *doorbell
}

// open sets the doorbell and the state Starting.
func (l *lifecycle) open(bell *doorbell) {
	l.bell = bell
	l.state.Store(int32(progress.Starting))
}

func (l *lifecycle) running() bool { return l.state.Load() == int32(progress.Running) }

// setRunning changes the state from Starting to Running. It returns false if stopAndWake came
// first.
func (l *lifecycle) setRunning() bool {
	return l.state.CompareAndSwap(int32(progress.Starting), int32(progress.Running))
}

// stopAndWake sets the state Stopping and wakes the thread; the doorbell cannot be rung any more.
// Any goroutine may call it.
func (l *lifecycle) stopAndWake() {
	stopping := int32(progress.Stopping)
	if l.state.CompareAndSwap(int32(progress.Running), stopping) ||
		l.state.CompareAndSwap(int32(progress.Starting), stopping) {
		l.bell.shutDown()
	}
}

func (l *lifecycle) State() progress.State { return progress.State(l.state.Load()) }

func (l *lifecycle) Descriptor() int { return l.bell.descriptor }

// localObjects holds the consumers and producers of this side, from before the peer learns of them.
type localObjects struct {
	mu        sync.Mutex
	ended     bool
	nextID    uint32
	consumers map[comch.ConsumerID]*consumer
	producers map[*producer]struct{}
}

func (l *localObjects) open(role role) {
	l.nextID = uint32(role)
	l.consumers = make(map[comch.ConsumerID]*consumer)
	l.producers = make(map[*producer]struct{})
}

// newID returns a new id for a consumer, a producer or an export.
func (l *localObjects) newID() (uint32, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.nextID > math.MaxUint32-2 {
		return 0, status.Errorf(status.Full, "connection has no ids left")
	}
	id := l.nextID
	l.nextID += 2
	return id, nil
}

func (l *localObjects) addConsumer(c *consumer, limit int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return status.Errorf(status.NotConnected, "connection has ended")
	}
	if len(l.consumers) >= limit {
		return errFull("consumers", limit)
	}
	l.consumers[c.id] = c
	return nil
}

func (l *localObjects) removeConsumer(id comch.ConsumerID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.consumers, id)
}

func (l *localObjects) addProducer(p *producer, limit int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return status.Errorf(status.NotConnected, "connection has ended")
	}
	if len(l.producers) >= limit {
		return errFull("producers", limit)
	}
	l.producers[p] = struct{}{}
	return nil
}

func (l *localObjects) removeProducer(p *producer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.producers, p)
}

// producersOf returns the peer's producers of one of our consumers, or nil if there is no such
// consumer.
func (l *localObjects) producersOf(id comch.ConsumerID) *remoteProducers {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.consumers[id]; c != nil {
		return &c.producers
	}
	return nil
}

func (l *localObjects) count() (consumers, producers int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.consumers), len(l.producers)
}

// stopAll stops all consumers and producers. No more can be added.
func (l *localObjects) stopAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	for _, c := range l.consumers {
		c.stopAndWake()
	}
	for p := range l.producers {
		p.stopAndWake()
	}
}

// errFull returns the error for exceeding the limit of a kind of object.
func errFull(what string, limit int) error {
	return status.Errorf(status.Full, "connection has reached its limit of %d %s", limit, what)
}
