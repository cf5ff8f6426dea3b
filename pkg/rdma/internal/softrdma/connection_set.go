// SPDX-License-Identifier: Apache-2.0

package softrdma

import (
	"sync"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Unassigned is the slot of a connection in the inbox.
const Unassigned = -2

// connectionSet holds the connections of a completion queue: those that have arrived in its inbox,
// the open ones, and those that have ended and whose OpDisconnected has not been polled. It belongs
// to the thread that polls the queue, except Attach, Notify, and Close, which any goroutine may
// call.
type connectionSet[C any] struct {
	// Wake ends the sleep of the queue's thread. Any goroutine may call it.
	Wake func()
	// Open holds the open connections.
	Open []*C

	slots []*C // open connections by their slot, nil where a slot is free
	ended []*C

	// notified is set when another thread has left work: a connection in the inbox, or an aborted
	// connection.
	notified atomic.Bool
	inbox    struct {
		sync.Mutex
		connections []*C
		closed      bool
	}
	attached atomic.Int32 // connections that have not been detached
}

// Attach puts an established connection into the inbox. Its slot is Unassigned until Activate.
func (s *connectionSet[C]) Attach(c *C) error {
	s.inbox.Lock()
	defer s.inbox.Unlock()
	if s.inbox.closed {
		return status.Errorf(status.BadState, "completion queue is closed")
	}
	s.attached.Add(1)
	s.inbox.connections = append(s.inbox.connections, c)
	s.notifyLocked()
	return nil
}

// Notify makes the queue's thread look for aborted connections. It does nothing once the queue is
// closed: a connection may outlive its queue, and another file may have reused the number of the
// wake-up descriptor.
func (s *connectionSet[C]) Notify() {
	s.inbox.Lock()
	defer s.inbox.Unlock()
	if !s.inbox.closed {
		s.notifyLocked()
	}
}

// notifyLocked makes the queue's thread process its inbox and look for aborted connections, and
// wakes it if it sleeps. The caller holds the inbox lock.
func (s *connectionSet[C]) notifyLocked() {
	s.notified.Store(true)
	s.Wake()
}

// Notified reports whether another thread has left work since Acknowledge.
func (s *connectionSet[C]) Notified() bool { return s.notified.Load() }

// Acknowledge clears Notified. Look for work afterwards, so that work left later sets it again.
func (s *connectionSet[C]) Acknowledge() { s.notified.Store(false) }

// Arrived empties the inbox.
func (s *connectionSet[C]) Arrived() []*C {
	s.inbox.Lock()
	defer s.inbox.Unlock()
	arrived := s.inbox.connections
	s.inbox.connections = nil
	return arrived
}

// Activate makes a connection that has arrived one of the open ones, and returns its slot, which
// identifies it to a poller.
func (s *connectionSet[C]) Activate(c *C) (slot int32) {
	s.Open = append(s.Open, c)
	for i, used := range s.slots {
		if used == nil {
			s.slots[i] = c
			return int32(i)
		}
	}
	s.slots = append(s.slots, c)
	return int32(len(s.slots) - 1)
}

// At returns the connection in a slot that Activate has returned, or nil if it has ended.
func (s *connectionSet[C]) At(slot int32) *C { return s.slots[slot] }

// End moves a connection from the open ones to the ended ones.
func (s *connectionSet[C]) End(c *C, slot int32) {
	s.slots[slot] = nil
	for i, other := range s.Open {
		if other == c {
			last := len(s.Open) - 1
			s.Open[i], s.Open[last] = s.Open[last], nil
			s.Open = s.Open[:last]
			break
		}
	}
	s.ended = append(s.ended, c)
}

// HasEnded reports whether a connection has ended and has not been detached.
func (s *connectionSet[C]) HasEnded() bool { return len(s.ended) > 0 }

// Detach removes the connection that ended last and returns it.
func (s *connectionSet[C]) Detach() *C {
	last := len(s.ended) - 1
	c := s.ended[last]
	s.ended[last] = nil
	s.ended = s.ended[:last]
	s.attached.Add(-1)
	return c
}

// Close calls release, once, if no connection is attached, and otherwise fails with status.InUse.
// From then on, Wake is called no more.
func (s *connectionSet[C]) Close(release func()) error {
	s.inbox.Lock()
	defer s.inbox.Unlock()
	if s.inbox.closed {
		return nil
	}
	if n := s.attached.Load(); n > 0 {
		return status.Errorf(status.InUse,
			"close completion queue: %d connections are attached; close them and poll the queue", n)
	}
	s.inbox.closed = true
	release()
	return nil
}
