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
	push   int // of the consumer's doorbell

	waitMu  sync.Mutex // guards waiting and the shared flag
	waiting int        // producers that are armed

	// Guarded by the lock of remoteConsumers:
	producers map[*producer]struct{}
	closed    bool // by the peer, or with the connection
	withdrawn bool // by the peer, which then has no use for the ring
}

// announceWaiting asks the consumer to ring when it posts receives.
func (r *remoteConsumer) announceWaiting(additional int) {
	r.waitMu.Lock()
	defer r.waitMu.Unlock()
	r.waiting += additional
	r.ring.shared.header.producersWaiting.Store(1)
}

// withdrawWaiting takes it back when nobody else waits.
func (r *remoteConsumer) withdrawWaiting() {
	r.waitMu.Lock()
	defer r.waitMu.Unlock()
	r.waiting--
	if r.waiting == 0 {
		r.ring.shared.header.producersWaiting.Store(0)
	}
}

// remoteConsumers are the peer's consumers, and the ring memory that counts
// against the connection's limit, which on the server is that of both sides.
type remoteConsumers struct {
	role     role
	disposal *disposal

	mu        sync.Mutex
	limits    Limits
	ended     bool
	ringBytes int
	consumers map[comch.ConsumerID]*remoteConsumer
}

func (r *remoteConsumers) start(role role, limits Limits, disposal *disposal) {
	r.role = role
	r.disposal = disposal
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

func (r *remoteConsumers) giveBack(bytes int) {
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

func (r *remoteConsumers) full() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.consumers) >= r.limits.MaxConsumers
}

// attach makes p a producer to the consumer id.
func (r *remoteConsumers) attach(id comch.ConsumerID, p *producer) error {
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
func (r *remoteConsumers) detach(p *producer) {
	r.mu.Lock()
	c := p.consumer
	delete(c.producers, p)
	last := c.closed && len(c.producers) == 0
	r.mu.Unlock()
	if last {
		r.dispose(c)
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
	c.withdrawn = !r.ended
	for p := range c.producers {
		p.end()
	}
	unused := len(c.producers) == 0
	r.mu.Unlock()
	if unused {
		r.dispose(c)
	}
	return true
}

// dispose frees the memory and the doorbell of a consumer that nobody uses
// here. A client that has not withdrawn its consumer may still be reading.
func (r *remoteConsumers) dispose(c *remoteConsumer) {
	r.disposal.close(c.push)
	r.disposal.add(func() {
		size := int(c.region.Len())
		if r.role == serverRole && c.closed && !c.withdrawn {
			freeRingLater(c.region)
		} else {
			freeRing(r.role, c.region)
		}
		r.giveBack(size)
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
		c.put(textFrame(frameReply, err, uint32(id)), descriptors{})
		return nil
	}
	answer, err := c.consumerAnswer(consumer)
	if err != nil {
		c.remote.dispose(consumer) // the consumer was never used
		c.put(textFrame(frameReply, err, uint32(id)), descriptors{})
		return nil
	}
	if !c.remote.add(consumer) {
		c.remote.dispose(consumer) // the consumer was never used
		answer.closeAll()
		return violation("consumer %d exists already", id)
	}
	c.events.put(comch.ConsumerEvent{ID: id, Created: true})
	c.put(textFrame(frameReply, nil, uint32(id)), answer)
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

// consumerAnswer is what goes back with the consent to a consumer: on the
// server, its ring.
func (c *connection) consumerAnswer(consumer *remoteConsumer) (answer descriptors, err error) {
	if c.role == clientRole {
		return answer, nil
	}
	twin, err := duplicate(consumer.region.Descriptor())
	if err == nil {
		answer.add(twin)
	}
	return answer, err
}

func (c *connection) handleCloseConsumer(f *frame) {
	id := comch.ConsumerID(f.fields[0])
	if c.remote.close(id) {
		c.events.put(comch.ConsumerEvent{ID: id})
	}
}

// audience is who waits for the posted receives of one of our consumers: the
// peer's producers to it.
type audience struct {
	// highest is the highest producer id so far.
	highest atomic.Uint32

	mu      sync.Mutex
	members []member
	closed  bool
}

// member is a producer of the peer with the push of its doorbell.
type member struct {
	producer uint32
	push     int
}

// add takes over push if it succeeds.
func (a *audience) add(producer uint32, push, limit int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return status.Errorf(status.NotFound, "the consumer is gone")
	}
	if len(a.members) >= limit {
		return errNoRoom("producers of one consumer", limit)
	}
	for _, m := range a.members {
		if m.producer == producer {
			return status.Errorf(status.AlreadyExist, "producer %d exists already", producer)
		}
	}
	a.members = append(a.members, member{producer, push})
	a.highest.Store(max(a.highest.Load(), producer))
	return nil
}

// remove lets go of a member. Its push is the caller's to close: wake must
// not wait for that.
func (a *audience) remove(producer uint32) (push int, found bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, m := range a.members {
		if m.producer == producer {
			a.members = append(a.members[:i], a.members[i+1:]...)
			return m.push, true
		}
	}
	return -1, false
}

// wake rings every member. The lock keeps the descriptors open meanwhile; it
// is taken only when a producer sleeps.
func (a *audience) wake() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, m := range a.members {
		ringPush(m.push)
	}
}

// close lets go of all members, whose pushes are the caller's to close, and
// refuses new ones.
func (a *audience) close() []member {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	members := a.members
	a.members = nil
	return members
}

// handleOpenProducer lets one of our consumers know the peer's producer.
func (c *connection) handleOpenProducer(f *frame, received *descriptors) error {
	id, consumer := f.fields[0], comch.ConsumerID(f.fields[1])
	if !c.role.other().owns(id) {
		return violation("producer id %d is not the peer's to give", id)
	}
	err := c.admitProducer(id, consumer, received)
	c.put(textFrame(frameReply, err, id), descriptors{})
	return nil
}

func (c *connection) admitProducer(id uint32, consumer comch.ConsumerID, received *descriptors) error {
	audience := c.local.audience(consumer)
	if audience == nil {
		return status.Errorf(status.NotFound, "there is no consumer %d", consumer)
	}
	push, ok := received.take()
	if !ok {
		return status.Errorf(status.InvalidValue, "producer %d came without a doorbell", id)
	}
	if err := checkPush(push); err != nil {
		closeDescriptor(push)
		return err
	}
	if err := audience.add(id, push, c.limits.MaxProducers); err != nil {
		closeDescriptor(push)
		return err
	}
	return nil
}

func (c *connection) handleCloseProducer(f *frame) {
	if audience := c.local.audience(comch.ConsumerID(f.fields[1])); audience != nil {
		if push, found := audience.remove(f.fields[0]); found {
			c.disposal.close(push)
		}
	}
}
