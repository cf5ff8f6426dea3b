package iwarp

import "golang.org/x/sys/unix"

// Sessions share threads, and their threads share cores. A thread that moves
// large payloads has something to do in every turn, so it never gives its core
// away for want of work, and the kernel takes the core away at a tick,
// milliseconds later: so long would a small request of another session wait.
// Therefore a thread that has company gives its core away by itself. One that
// has none does not: it would pay for a turn of whoever polls there in vain.
const (
	// companyTurnBytes is how many bytes one turn of a connection moves if
	// there is company.
	companyTurnBytes = 128 << 10
	// yieldBytes is after how many bytes of large payloads a thread gives its
	// core away.
	yieldBytes = 64 << 10
	// companyYields is how often it does so after the last sign of company,
	// which may be waiting for this very core.
	companyYields = 64
)

// company is what a completion queue knows about other sessions at work.
type company struct {
	yields int // how many more times to give the core away
	bytes  int // of large payloads since the last time
}

// moved notes that n bytes of the connection were received or sent.
func (c *connection) moved(n int, large bool) {
	q := c.queue
	if last := q.device.mover.Load(); last != c.domain {
		q.device.mover.Store(c.domain)
		if last != nil {
			q.company.yields = companyYields
		}
	}
	if large {
		q.company.bytes += n
	}
}

// turnBytes is how much a connection may move in one turn, of usually so many
// bytes.
func (q *completionQueue) turnBytes(usual int) int {
	if q.company.yields > 0 {
		return companyTurnBytes
	}
	return usual
}

// giveWay gives the core away if it is time to.
func (q *completionQueue) giveWay() {
	if q.company.due() {
		// It never blocks, so the Go scheduler need not know.
		_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
}

// due tells whether to give the core away now, and counts on that.
func (c *company) due() bool {
	if c.yields == 0 || c.bytes < yieldBytes {
		return false
	}
	c.bytes = 0
	c.yields--
	return true
}
