package iwarp

import "github.com/zc-relay/zc-relay/pkg/progress"

// Sessions share threads, and their threads share cores. Where there is always
// something to do, because of large payloads or of many sessions, a thread never
// gives its core away for want of work, and the kernel takes the core away at a
// tick, milliseconds later: so long would another session wait. Therefore a
// thread that has company gives its core away by itself. One that has none does
// not: it would pay for a turn of whoever polls there in vain.
const (
	// companyTurnBytes is how many bytes one turn of a connection moves if
	// there is company.
	companyTurnBytes = 128 << 10
	// yieldBytes is after how many bytes a thread gives its core away.
	yieldBytes = 64 << 10
	// companyYields is how often it does so after the last sign of company,
	// which may be waiting for this very core.
	companyYields = 64
)

// company is what a completion queue knows about other sessions at work.
type company struct {
	yields int // how many more times to give the core away
	bytes  int // moved since the last time
}

// moved notes that n bytes of the connection were received or sent.
func (c *connection) moved(n int) {
	q := c.queue
	if last := q.device.mover.Load(); last != c.domain {
		q.device.mover.Store(c.domain)
		if last != nil {
			q.company.yields = companyYields
		}
	}
	q.company.bytes += n
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
		progress.Yield()
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
