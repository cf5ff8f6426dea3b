// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/internal/broker"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// plainBroker hands out the memory that connections of this process export to programs on the
// emulated libdoca.
var plainBroker broker.Server

// plainKey tells plain exports apart: those with equal keys are one.
type plainKey struct {
	region *memory.Region
	access memory.Access
}

// plainExports holds the plain exports of a connection.
type plainExports struct {
	mu     sync.Mutex
	closed bool
	byKey  map[plainKey]*broker.Export
}

// plainSource is the file of an exported region. It implements broker.Source.
type plainSource struct{ descriptor int }

// File returns a descriptor of the same open file description, which a memory.Loan relies on.
func (s *plainSource) File() (descriptor int, offset uint64) {
	descriptor, err := duplicate(s.descriptor)
	if err != nil {
		return -1, 0
	}
	return descriptor, 0
}

// Patience is 0: an importer may use what it has mapped, so nothing depends on its answer.
func (s *plainSource) Patience() time.Duration { return 0 }

// add makes a region's file the source of x, and returns the descriptor. It fails with
// status.NotConnected after close.
func (p *plainExports) add(key plainKey, x *broker.Export, limit int) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, status.NotConnected
	}
	if existing := p.byKey[key]; existing != nil {
		return existing.Encode(), nil
	}
	if len(p.byKey) >= limit {
		return nil, errFull("memory exports", limit)
	}
	dup, err := duplicate(key.region.Descriptor())
	if err != nil {
		return nil, err
	}
	x.Source = &plainSource{dup}
	if err := plainBroker.Add(x); err != nil {
		closeDescriptor(dup)
		return nil, err
	}
	if p.byKey == nil {
		p.byKey = make(map[plainKey]*broker.Export)
	}
	p.byKey[key] = x
	return x.Encode(), nil
}

// close ends the exports. An importer that is about to ask for the memory can delay that, so a task
// of the queue does it.
func (p *plainExports) close(cleanup *cleanupQueue) {
	p.mu.Lock()
	ended := p.byKey
	p.byKey = nil
	p.closed = true
	p.mu.Unlock()
	for _, x := range ended {
		cleanup.add(func() {
			plainBroker.Remove(x)
			closeDescriptor(x.Source.(*plainSource).descriptor)
		})
	}
}
