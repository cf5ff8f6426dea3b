package emulated

import (
	"math"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// localObjects are the consumers and producers of this side. They are entered
// before the peer hears of them.
type localObjects struct {
	mu        sync.Mutex
	ended     bool
	nextID    uint32
	consumers map[comch.ConsumerID]*consumer
	producers map[uint32]*producer
}

func (l *localObjects) start(role role) {
	l.nextID = uint32(role)
	l.consumers = make(map[comch.ConsumerID]*consumer)
	l.producers = make(map[uint32]*producer)
}

// takeID gives out an id for a consumer, a producer or a request.
func (l *localObjects) takeID() (uint32, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.nextID > math.MaxUint32-2 {
		return 0, status.Errorf(status.Full, "the connection has used up its ids")
	}
	id := l.nextID
	l.nextID += 2
	return id, nil
}

func (l *localObjects) addConsumer(c *consumer, limit int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return status.Errorf(status.NotConnected, "the connection has ended")
	}
	if len(l.consumers) >= limit {
		return errNoRoom("consumers", limit)
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
		return status.Errorf(status.NotConnected, "the connection has ended")
	}
	if len(l.producers) >= limit {
		return errNoRoom("producers", limit)
	}
	l.producers[p.id] = p
	return nil
}

func (l *localObjects) removeProducer(id uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.producers, id)
}

// audience finds who listens to one of our consumers, nil if there is no such
// consumer.
func (l *localObjects) audience(id comch.ConsumerID) *audience {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.consumers[id]; c != nil {
		return &c.audience
	}
	return nil
}

func (l *localObjects) count() (consumers, producers int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.consumers), len(l.producers)
}

// endAll stops everything and admits nothing more.
func (l *localObjects) endAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	for _, c := range l.consumers {
		c.end()
	}
	for _, p := range l.producers {
		p.end()
	}
}

// errNoRoom tells that there are as many objects of a kind as there may be.
func errNoRoom(what string, limit int) error {
	return status.Errorf(status.Full, "the connection has its maximum of %d %s", limit, what)
}
