// SPDX-License-Identifier: Apache-2.0

package retry

import (
	"time"

	"github.com/zc-relay/zc-relay/internal/bucket"
)

// Turns limits the rate at which callers are admitted. Each rejected caller gets a time of its own
// to try again, so that rejected callers do not return all at once. The time reserves nothing:
// Turns admits every caller that the rate allows. The methods may be called concurrently.
type Turns struct {
	burst    int
	admitted *bucket.Bucket
	told     *bucket.Bucket
	longest  time.Duration
}

// burstsPerSecond is the part of a second's newcomers that Turns admits at once after a rest: one
// in so many.
const burstsPerSecond = 5

// NewTurns returns turns at a rate, at least one per second, none of them later than longest.
func NewTurns(perSecond int, longest time.Duration) *Turns {
	perSecond = max(perSecond, 1)
	interval := time.Second / time.Duration(perSecond)
	return &Turns{burst: max(perSecond/burstsPerSecond, 1), admitted: bucket.New(interval),
		told: bucket.New(interval), longest: longest}
}

// Admit counts a newcomer that is admitted now, and returns 0. Otherwise it returns how long the
// newcomer should wait until its turn.
func (t *Turns) Admit(now time.Time) (wait time.Duration) {
	next, ok := t.admitted.Reserve(now, t.burst, 0)
	if ok {
		return 0
	}
	turn, ok := t.told.Reserve(now, 1, t.longest)
	if !ok {
		return t.longest
	}
	return min(next+turn, t.longest)
}
