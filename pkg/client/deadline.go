// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// deadlines says when the requests of a queue fail its session. All times are those of the clock.
type deadlines struct {
	limit int64 // of a request without a timeout of its own, in nanoseconds
	// earliest is not after the deadline of any outstanding request. The clock reads it.
	earliest atomic.Int64
	// reminded is set by the clock when it has woken the queue's thread, until that has looked.
	reminded atomic.Bool
}

// never is the deadline of a request that may take any time.
const never = math.MaxInt64

func (d *deadlines) init(limit time.Duration) {
	if d.limit = int64(limit); limit < 0 {
		d.limit = never
	}
	d.earliest.Store(never)
}

// begin returns the deadline of a request that begins now. A timeout of 0 means that of the queue.
func (d *deadlines) begin(now int64, timeout time.Duration) int64 {
	limit := d.limit
	switch {
	case timeout > 0:
		limit = int64(timeout)
	case timeout < 0:
		limit = never
	}
	deadline := now + min(limit, never-now)
	if deadline < d.earliest.Load() {
		d.earliest.Store(deadline)
	}
	return deadline
}

// isOver reports whether a request may have exceeded its deadline.
func (d *deadlines) isOver(now int64) bool { return now > d.earliest.Load() }

// checkDeadlines fails the session if a request has exceeded its deadline.
func (q *Queue) checkDeadlines() {
	now := q.clock.Load()
	if !q.deadlines.isOver(now) {
		return
	}
	earliest := int64(never)
	for i := range q.slots {
		s := &q.slots[i]
		if s.outstanding && now > s.deadline {
			q.session.fail(status.Errorf(status.TimeOut,
				"relay did not complete an IO within %v: is it, the target, or the target's storage "+
					"stopped or slow? a longer time-out waits for it",
				time.Duration(s.deadline-s.since)))
			earliest = never
			break
		}
		if s.outstanding {
			earliest = min(earliest, s.deadline)
		}
	}
	q.deadlines.earliest.Store(earliest)
	q.deadlines.reminded.Store(false)
}

// remind wakes the queue's thread when a request may have exceeded its deadline. It is called by
// the clock.
func (q *Queue) remind(now int64) {
	if q.deadlines.isOver(now) && !q.deadlines.reminded.Swap(true) {
		q.wake()
	}
}

// clockTick is the resolution of the clock that checks deadlines.
const clockTick = 100 * time.Millisecond

// clock is a coarse clock: nanoseconds since Open, updated every clockTick.
type clock struct{ atomic.Int64 }

// run advances the clock until ctx ends, and calls tick whenever it has.
func (c *clock) run(ctx context.Context, tick func(now int64)) {
	start := time.Now()
	ticker := time.NewTicker(clockTick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			now := int64(time.Since(start))
			c.Store(now)
			tick(now)
		}
	}
}
