// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"sync"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/internal/linux"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// remoteConsumer is a consumer of the peer, as our producers see it. It exists until the peer has
// closed it and the last producer is closed, so that no producer loses memory that it is writing
// to.
type remoteConsumer struct {
	id     comch.ConsumerID
	ring   *sendRing
	region *memory.Region
	button int // of the consumer's doorbell

	waitMu  sync.Mutex // guards waiting and the shared flag
	waiting int        // number of armed producers

	// Guarded by remoteConsumers.mu.
	producers      map[*lifecycle]struct{}
	stopped        bool // by the peer, which may still read what has arrived
	closed         bool // by the peer, or with the connection
	releasedByPeer bool // the peer closed it and no longer needs the ring
}

// remoteConsumers holds the peer's consumers.
type remoteConsumers struct {
	role      role
	cleanup   *cleanupQueue
	lingering *lingeringRings
	user      uint32 // of the peer
	limit     int

	mu        sync.Mutex
	ended     bool
	consumers map[comch.ConsumerID]*remoteConsumer
}

// add adds a consumer. It returns false if the id is in use or the connection has ended.
func (r *remoteConsumers) add(c *remoteConsumer) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.consumers[c.id] != nil || r.ended {
		return false
	}
	c.producers = make(map[*lifecycle]struct{})
	r.consumers[c.id] = c
	return true
}

func (r *remoteConsumers) isFull() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.consumers) >= r.limit
}

// addProducer makes p a producer of consumer id, which it returns.
func (r *remoteConsumers) addProducer(id comch.ConsumerID, p *lifecycle) (*remoteConsumer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.consumers[id]
	if c == nil || c.stopped {
		return nil, status.Errorf(status.NotFound, "peer has no consumer %d", id)
	}
	c.producers[p] = struct{}{}
	return c, nil
}

// removeProducer removes p from its consumer c, and releases the consumer if it is no longer used.
func (r *remoteConsumers) removeProducer(c *remoteConsumer, p *lifecycle) {
	r.mu.Lock()
	delete(c.producers, p)
	last := c.closed && len(c.producers) == 0
	r.mu.Unlock()
	if last {
		r.release(c)
	}
}

// stop ends the producers of a consumer. It returns false if there is no such consumer, or if it
// has been stopped before.
func (r *remoteConsumers) stop(id comch.ConsumerID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.consumers[id]
	return c != nil && c.stopLocked()
}

func (c *remoteConsumer) stopLocked() bool {
	if c.stopped {
		return false
	}
	c.stopped = true
	for p := range c.producers {
		p.stopAndWake()
	}
	return true
}

// close closes a consumer, either on behalf of the peer or with the connection. It returns false if
// there is no such consumer, or if it has been stopped before.
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
	stopped := c.stopLocked()
	unused := len(c.producers) == 0
	r.mu.Unlock()
	if unused {
		r.release(c)
	}
	return stopped
}

// release frees the memory and the doorbell of a consumer that has no producers. The server keeps a
// ring for a while if the client, which has not released it, may still read it.
func (r *remoteConsumers) release(c *remoteConsumer) {
	r.cleanup.close(c.button)
	if r.role == serverRole && c.closed && !c.releasedByPeer {
		r.lingering.add(r.user, c.region, r.cleanup)
	} else {
		r.cleanup.free(r.role, c.region)
	}
}

// closeAll closes all consumers at the end of the connection. No more can be added.
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

// remoteProducers holds the peer's producers of one of our consumers. They wait for its posted
// receives.
type remoteProducers struct {
	// highestID is the highest producer id so far.
	highestID atomic.Uint32

	mu     sync.Mutex
	list   []remoteProducer
	closed bool
}

// remoteProducer is a producer of the peer, with the button of its doorbell.
type remoteProducer struct {
	id     uint32
	button int
}

// add takes ownership of button if it succeeds.
func (r *remoteProducers) add(producer uint32, button int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return status.Errorf(status.NotFound, "consumer is closed")
	}
	for _, p := range r.list {
		if p.id == producer {
			return status.Errorf(status.AlreadyExist, "producer %d already exists", producer)
		}
	}
	r.list = append(r.list, remoteProducer{producer, button})
	r.highestID.Store(max(r.highestID.Load(), producer))
	return nil
}

// remove removes a producer and returns its button. The caller closes the button, so that wake does
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

// wake rings the doorbells of all producers. The lock keeps the buttons open; the consumer takes it
// only when a producer sleeps.
func (r *remoteProducers) wake() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.list {
		linux.Wake(p.button)
	}
}

// close removes all producers and rejects new ones. The caller closes the buttons.
func (r *remoteProducers) close() []remoteProducer {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	list := r.list
	r.list = nil
	return list
}
