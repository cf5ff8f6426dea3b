package connections

// Sessions share threads, and their threads share cores. A thread that always has work, because of
// large payloads or many sessions, never yields its core for lack of work. The kernel preempts such
// a thread only at a scheduler tick, so a session on another thread would wait for milliseconds. A
// thread therefore yields deliberately while other sessions are active. It does not yield while its
// session is alone: that would only give the core to other threads that poll in vain.
const (
	// ContendedTurnBytes bounds the bytes that a connection moves per turn while other sessions are
	// active.
	ContendedTurnBytes = 128 << 10
	// YieldBytes is the number of bytes after which a thread yields.
	YieldBytes = 64 << 10
	// ContendedYields is how many times a thread yields after it last saw another session, which
	// may be waiting for this very core.
	ContendedYields = 64
)

// Fairness decides when a completion queue's thread yields to other active sessions. It belongs to
// that thread.
type Fairness struct {
	yieldsLeft int // 0 if no other session is active
	moved      int // bytes since the last yield
}

// Count records that a connection has moved bytes. contended tells whether another session was the
// last to do so, as registration.Domain.Activate returns it.
func (f *Fairness) Count(bytes int, contended bool) {
	if contended {
		f.yieldsLeft = ContendedYields
	}
	f.moved += bytes
}

// TurnBudget returns how many bytes a connection may move in one turn: usual, or less while other
// sessions are active.
func (f *Fairness) TurnBudget(usual int) int {
	if f.yieldsLeft > 0 {
		return min(usual, ContendedTurnBytes)
	}
	return usual
}

// YieldDue reports whether to yield now. If so, it counts the yield.
func (f *Fairness) YieldDue() bool {
	if f.yieldsLeft == 0 || f.moved < YieldBytes {
		return false
	}
	f.moved = 0
	f.yieldsLeft--
	return true
}
