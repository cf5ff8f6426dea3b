package iwarp

import (
	"math"
	"sync/atomic"
)

// useCount counts the uses of something that can be revoked: after revoke has
// returned there are none, and there will be none.
type useCount struct {
	count   atomic.Int64 // shifted by revoked once that has happened
	drained chan struct{}
}

const revoked = math.MinInt64 / 2

func newUseCount() useCount { return useCount{drained: make(chan struct{}, 1)} }

// acquire begins a use. False means that it has been revoked.
func (u *useCount) acquire() bool {
	if u.count.Add(1) > 0 {
		return true
	}
	u.release()
	return false
}

func (u *useCount) release() {
	if u.count.Add(-1) != revoked {
		return
	}
	select {
	case u.drained <- struct{}{}:
	default:
	}
}

// revoke forbids further uses and waits for the present ones to end. It must
// be called once.
func (u *useCount) revoke() {
	if u.count.Add(revoked) != revoked {
		<-u.drained
	}
}

// revokeUnused revokes only if there is no use.
func (u *useCount) revokeUnused() bool { return u.count.CompareAndSwap(0, revoked) }
