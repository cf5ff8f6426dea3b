// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"math"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// localObjects holds the consumers and producers of this side, from before the peer learns of them.
type localObjects struct {
	mu        sync.Mutex
	ended     bool
	nextID    uint32
	consumers map[comch.ConsumerID]localConsumer
	producers map[*lifecycle]struct{}
}

// localConsumer is what the connection has to know of a consumer.
type localConsumer struct {
	*lifecycle
	producers *remoteProducers
}

func (l *localObjects) open(role role) {
	l.nextID = uint32(role)
	l.consumers = make(map[comch.ConsumerID]localConsumer)
	l.producers = make(map[*lifecycle]struct{})
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

func (l *localObjects) addConsumer(id comch.ConsumerID, c localConsumer, limit int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return status.Errorf(status.NotConnected, "connection has ended")
	}
	if len(l.consumers) >= limit {
		return errFull("consumers", limit)
	}
	l.consumers[id] = c
	return nil
}

func (l *localObjects) removeConsumer(id comch.ConsumerID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.consumers, id)
}

func (l *localObjects) addProducer(p *lifecycle, limit int) error {
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

func (l *localObjects) removeProducer(p *lifecycle) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.producers, p)
}

// producersOf returns the peer's producers of one of our consumers, or nil if there is no such
// consumer.
func (l *localObjects) producersOf(id comch.ConsumerID) *remoteProducers {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.consumers[id].producers
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
