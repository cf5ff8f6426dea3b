// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"slices"
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/pkg/memory"
)

// pool is what the connections of one server share. Other connections have one each.
type pool struct {
	account account
	// allocating holds a token while a ring is being allocated. Connections take turns, so many
	// that create rings without end delay another by one ring each.
	allocating chan struct{}
	lingering  lingeringRings
}

func newPool(parent *account, limit holdings) *pool {
	return &pool{
		account:    account{name: "server", parent: parent, limit: limit},
		allocating: make(chan struct{}, 1),
	}
}

// newAccount returns the account of a connection that takes from the pool. The connection's socket
// is charged already.
func (p *pool) newAccount(limits Limits) *account {
	a := &account{name: "connection", parent: &p.account, limit: limits.ofConnection()}
	_ = a.charge(holdings{descriptors: 1}) // the server has checked
	return a
}

// checkNewcomer returns an error if the pool has no room for another connection.
func (p *pool) checkNewcomer() error {
	newcomer := account{name: "connection", parent: &p.account, limit: unlimited}
	socket := holdings{descriptors: 1}
	defer newcomer.release(socket)
	return newcomer.charge(socket)
}

// lingeringRings holds the rings that a server keeps for clients of ended connections.
type lingeringRings struct {
	mu    sync.Mutex
	rings []*lingeringRing
}

type lingeringRing struct {
	user   uint32 // of the client
	region *memory.Region
	queue  *cleanupQueue // of its connection
	timer  *time.Timer
}

// readGracePeriod is how long the server keeps the ring of a client's consumer after the connection
// has ended: the client may be copying a message, which must not turn into zeroes. A server that
// needs the memory for other rings frees it earlier.
const readGracePeriod = 5 * time.Second

// add frees a ring after readGracePeriod.
func (l *lingeringRings) add(user uint32, region *memory.Region, queue *cleanupQueue) {
	queue.acquire()
	ring := &lingeringRing{user: user, region: region, queue: queue}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rings = append(l.rings, ring)
	ring.timer = time.AfterFunc(readGracePeriod, func() { l.free(ring) })
}

func (l *lingeringRings) free(ring *lingeringRing) {
	l.mu.Lock()
	i := slices.Index(l.rings, ring)
	if i >= 0 {
		l.rings = slices.Delete(l.rings, i, i+1)
	}
	l.mu.Unlock()
	if i >= 0 {
		ring.queue.free(serverRole, ring.region)
		ring.queue.release()
	}
}

// freeAll frees all rings of a user's clients at once, and waits for that up to bound.
func (l *lingeringRings) freeAll(user uint32, bound time.Duration, done <-chan struct{}) {
	var rings []*lingeringRing
	l.mu.Lock()
	l.rings = slices.DeleteFunc(l.rings, func(ring *lingeringRing) bool {
		if ring.user == user {
			rings = append(rings, ring)
		}
		return ring.user == user
	})
	l.mu.Unlock()
	for _, ring := range rings {
		ring.timer.Stop()
		ring.queue.free(serverRole, ring.region)
		ring.queue.release()
	}
	deadline := time.Now().Add(bound)
	for _, ring := range rings {
		ring.queue.waitFor(0, time.Until(deadline), done)
	}
}
