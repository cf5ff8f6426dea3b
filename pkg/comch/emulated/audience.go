package emulated

import (
	"sync"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/status"
)

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
