package emulated

import (
	"sync"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// remoteConsumer is a consumer of the peer as our producers see it. It lives
// until the peer has destroyed it and the last producer is closed, so that no
// producer loses memory that it is writing to.
type remoteConsumer struct {
	id     comch.ConsumerID
	ring   *sendRing
	region *memory.Region
	button int // of the consumer's doorbell

	waitMu  sync.Mutex // guards waiting and the shared flag
	waiting int        // producers that are armed

	// Guarded by the lock of remoteConsumers:
	producers      map[*producer]struct{}
	closed         bool // by the peer, or with the connection
	releasedByPeer bool // by the peer, which then has no use for the ring
}

// remoteConsumers are the peer's consumers, and the ring memory that counts
// against the connection's limit, which on the server is that of both sides.
type remoteConsumers struct {
	role    role
	cleanup *cleanupQueue

	mu        sync.Mutex
	limits    Limits
	ended     bool
	ringBytes int
	consumers map[comch.ConsumerID]*remoteConsumer
}

func (r *remoteConsumers) open(role role, limits Limits, cleanup *cleanupQueue) {
	r.role = role
	r.cleanup = cleanup
	r.limits = limits
	r.consumers = make(map[comch.ConsumerID]*remoteConsumer)
}

// reserve counts ring memory before it is allocated.
func (r *remoteConsumers) reserve(bytes int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if bytes > r.limits.MaxRingBytes-r.ringBytes {
		return status.Errorf(status.NoMemory, "ring of %d bytes: the connection has %d of its %d bytes left",
			bytes, r.limits.MaxRingBytes-r.ringBytes, r.limits.MaxRingBytes)
	}
	r.ringBytes += bytes
	return nil
}

func (r *remoteConsumers) unreserve(bytes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ringBytes -= bytes
}

// add enters a consumer. It fails if there is one with this id.
func (r *remoteConsumers) add(c *remoteConsumer) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.consumers[c.id] != nil || r.ended {
		return false
	}
	c.producers = make(map[*producer]struct{})
	r.consumers[c.id] = c
	return true
}

func (r *remoteConsumers) isFull() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.consumers) >= r.limits.MaxConsumers
}

// attach makes p a producer to the consumer id.
func (r *remoteConsumers) addProducer(id comch.ConsumerID, p *producer) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.consumers[id]
	if c == nil {
		return status.Errorf(status.NotFound, "the peer has no consumer %d", id)
	}
	p.consumer = c
	c.producers[p] = struct{}{}
	return nil
}

// detach is the end of a producer.
func (r *remoteConsumers) removeProducer(p *producer) {
	r.mu.Lock()
	c := p.consumer
	delete(c.producers, p)
	last := c.closed && len(c.producers) == 0
	r.mu.Unlock()
	if last {
		r.release(c)
	}
}

// close is the end of a consumer by the peer. It reports whether it existed.
func (r *remoteConsumers) close(id comch.ConsumerID) bool {
	r.mu.Lock()
	c := r.consumers[id]
	if c == nil {
		r.mu.Unlock()
		return false
	}
	delete(r.consumers, id)
	c.closed = true
	c.releasedByPeer = !r.ended
	for p := range c.producers {
		p.stopAndWake()
	}
	unused := len(c.producers) == 0
	r.mu.Unlock()
	if unused {
		r.release(c)
	}
	return true
}

// dispose frees the memory and the doorbell of a consumer that nobody uses
// here. A client that has not withdrawn its consumer may still be reading.
func (r *remoteConsumers) release(c *remoteConsumer) {
	r.cleanup.close(c.button)
	r.cleanup.add(func() {
		size := int(c.region.Len())
		if r.role == serverRole && c.closed && !c.releasedByPeer {
			freeRingLater(c.region)
		} else {
			freeRing(r.role, c.region)
		}
		r.unreserve(size)
	})
}

// closeAll is the end of the connection.
func (r *remoteConsumers) closeAll() {
	r.mu.Lock()
	r.ended = true
	ids := make([]comch.ConsumerID, 0, len(r.consumers))
	for id := range r.consumers {
		ids = append(ids, id)
	}
	r.mu.Unlock()
	for _, id := range ids {
		r.close(id)
	}
}

// handleOpenConsumer makes the peer's consumer known here. A consumer beyond
// the limits is refused; the connection lives on.
func (c *connection) handleOpenConsumer(f *frame, received *descriptors) error {
	id := comch.ConsumerID(f.fields[0])
	if !c.role.other().owns(uint32(id)) {
		return violation("consumer id %d is not the peer's to give", id)
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
			c.remote.release(consumer) // the consumer was never used
			c.enqueue(textFrame(frameReply, err, uint32(id)), descriptors{})
			return nil
		}
		passed.add(dup)
	}
	if !c.remote.add(consumer) {
		c.remote.release(consumer) // the consumer was never used
		passed.closeAll()
		return violation("consumer %d exists already", id)
	}
	c.events.put(comch.ConsumerEvent{ID: id, Created: true})
	c.enqueue(textFrame(frameReply, nil, uint32(id)), passed)
	return nil
}

// admitConsumer builds the peer's consumer from its announcement: the server
// makes the ring's memory, the client finds it in the frame.
func (c *connection) admitConsumer(f *frame, received *descriptors) (*remoteConsumer, error) {
	config := comch.ConsumerConfig{Receives: int(f.fields[1]), MemorySize: int(f.fields[2]), ImmediateLength: int(f.fields[3])}
	layout, err := planRing(config, c.limits)
	if err != nil {
		return nil, err
	}
	if c.remote.isFull() {
		return nil, errFull("consumers", c.limits.MaxConsumers)
	}
	button, ok := received.next()
	if !ok {
		return nil, status.Errorf(status.InvalidValue, "the consumer came without a doorbell")
	}
	if err := checkButton(button); err != nil {
		closeDescriptor(button)
		return nil, err
	}
	region, err := c.ringMemory(layout, received)
	if err != nil {
		closeDescriptor(button)
		return nil, err
	}
	return &remoteConsumer{
		id:     comch.ConsumerID(f.fields[0]),
		ring:   newSendRing(viewRing(region.Bytes(), layout), layout.immediate),
		region: region,
		button: button,
	}, nil
}

func (c *connection) handleCloseConsumer(f *frame) {
	id := comch.ConsumerID(f.fields[0])
	if c.remote.close(id) {
		c.events.put(comch.ConsumerEvent{ID: id})
	}
}

// audience is who waits for the posted receives of one of our consumers: the
// peer's producers to it.
type remoteProducers struct {
	// highest is the highest producer id so far.
	highestID atomic.Uint32

	mu     sync.Mutex
	list   []remoteProducer
	closed bool
}

// member is a producer of the peer with the push of its doorbell.
type remoteProducer struct {
	id     uint32
	button int
}

// add takes over push if it succeeds.
func (r *remoteProducers) add(producer uint32, button, limit int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return status.Errorf(status.NotFound, "the consumer is gone")
	}
	if len(r.list) >= limit {
		return errFull("producers of one consumer", limit)
	}
	for _, p := range r.list {
		if p.id == producer {
			return status.Errorf(status.AlreadyExist, "producer %d exists already", producer)
		}
	}
	r.list = append(r.list, remoteProducer{producer, button})
	r.highestID.Store(max(r.highestID.Load(), producer))
	return nil
}

// remove lets go of a member. Its push is the caller's to close: wake must
// not wait for that.
func (r *remoteProducers) remove(producer uint32) (button int, found bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, p := range r.list {
		if p.id == producer {
			r.list = append(r.list[:i], r.list[i+1:]...)
			return p.button, true
		}
	}
	return -1, false
}

// wake rings every member. The lock keeps the descriptors open meanwhile; it
// is taken only when a producer sleeps.
func (r *remoteProducers) wake() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.list {
		ringDoorbell(p.button)
	}
}

// close lets go of all members, whose pushes are the caller's to close, and
// refuses new ones.
func (r *remoteProducers) close() []remoteProducer {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	list := r.list
	r.list = nil
	return list
}

// handleOpenProducer lets one of our consumers know the peer's producer.
func (c *connection) handleOpenProducer(f *frame, received *descriptors) error {
	id, consumer := f.fields[0], comch.ConsumerID(f.fields[1])
	if !c.role.other().owns(id) {
		return violation("producer id %d is not the peer's to give", id)
	}
	err := c.admitProducer(id, consumer, received)
	c.enqueue(textFrame(frameReply, err, id), descriptors{})
	return nil
}

func (c *connection) admitProducer(id uint32, consumer comch.ConsumerID, received *descriptors) error {
	producers := c.local.producersOf(consumer)
	if producers == nil {
		return status.Errorf(status.NotFound, "there is no consumer %d", consumer)
	}
	button, ok := received.next()
	if !ok {
		return status.Errorf(status.InvalidValue, "producer %d came without a doorbell", id)
	}
	if err := checkButton(button); err != nil {
		closeDescriptor(button)
		return err
	}
	if err := producers.add(id, button, c.limits.MaxProducers); err != nil {
		closeDescriptor(button)
		return err
	}
	return nil
}

func (c *connection) handleCloseProducer(f *frame) {
	if producers := c.local.producersOf(comch.ConsumerID(f.fields[1])); producers != nil {
		if button, found := producers.remove(f.fields[0]); found {
			c.cleanup.close(button)
		}
	}
}
