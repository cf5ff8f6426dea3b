package emulated

import (
	"sync"

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
