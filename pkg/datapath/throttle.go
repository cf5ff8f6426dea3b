// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"sync/atomic"
	"time"

	"github.com/zc-relay/zc-relay/internal/bucket"
)

// RateLimits bounds the rate of requests. The zero value sets no limits.
type RateLimits struct {
	// IOPS is the number of requests per second, Bandwidth the data of reads and writes in bytes
	// per second; 0 sets no limit.
	IOPS      uint32 `json:"iops,omitempty"`
	Bandwidth uint64 `json:"bytes_per_s,omitempty"`
	// Burst is how long unused rates add up: so much of what they allow may follow a pause at once.
	// One request may always follow a pause.
	Burst time.Duration `json:"burst_ns"`
}

// IsZero reports whether there are no limits.
func (l RateLimits) IsZero() bool { return l.IOPS == 0 && l.Bandwidth == 0 }

// Throttle holds the lanes that share it to common rate limits, set for a channel or for a
// session. The zero value sets no limits. Its methods may be called concurrently.
//
// Each limit is a token bucket. A lane takes its tokens when it has read a request, even if that
// leaves the bucket in debt, and reads no more until the tokens that it has taken would have been
// there. So lanes that wait are served in the order in which they took tokens, one request each: a
// queue that always has requests cannot starve another one. The debt is bounded by a request of
// each lane.
type Throttle struct {
	buckets atomic.Pointer[buckets] // nil without limits
}

// buckets belong to one set of limits. New limits get new buckets, which are full.
type buckets struct {
	limits          RateLimits
	requests, bytes bucket.Bucket
}

// SetLimits replaces the limits. Lanes that wait notice it in their next turn: see RelayLane.Wake.
func (t *Throttle) SetLimits(limits RateLimits) {
	if t.Limits() == limits {
		return
	}
	if limits.IOPS == 0 && limits.Bandwidth == 0 {
		t.buckets.Store(nil)
		return
	}
	b := &buckets{limits: limits}
	if limits.IOPS > 0 {
		b.requests.Init(float64(time.Second) / float64(limits.IOPS))
	}
	if limits.Bandwidth > 0 {
		b.bytes.Init(float64(time.Second) / float64(limits.Bandwidth))
	}
	t.buckets.Store(b)
}

// Limits returns the limits.
func (t *Throttle) Limits() RateLimits {
	if b := t.buckets.Load(); b != nil {
		return b.limits
	}
	return RateLimits{}
}

// take takes the tokens of a request, and returns when another one may follow.
func (b *buckets) take(nowNs int64, size uint32) int64 {
	return max(b.requests.Take(nowNs, 1), b.bytes.Take(nowNs, size)) - int64(b.limits.Burst)
}

// throttleLevel says whose limits made a queue wait.
type throttleLevel uint8

// A lane is subject to the limits of its channel and of its session.
const (
	channelThrottle throttleLevel = iota
	sessionThrottle
	ThrottleLevelCount
)

// String returns the level's label in metrics.
func (l throttleLevel) String() string {
	switch l {
	case channelThrottle:
		return "channel"
	case sessionThrottle:
		return "session"
	}
	return "invalid"
}

// laneThrottle is a lane's view of its throttles. It belongs to the worker's thread, except
// totalNs.
type laneThrottle struct {
	throttles [ThrottleLevelCount]*Throttle // nil ones set no limits
	current   [ThrottleLevelCount]*buckets  // as of the latest turn
	level     throttleLevel                 // whose limits the lane waits for
	waiting   bool                          // for untilNs
	sinceNs   int64                         // when the wait began
	untilNs   int64                         // when the lane may read a request
	totalNs   atomic.Int64
}

// update reports whether there are limits. It ends a wait whose limits have been replaced.
func (t *laneThrottle) update() bool {
	limited := false
	for level, throttle := range t.throttles {
		if throttle == nil {
			continue
		}
		b := throttle.buckets.Load()
		if b != t.current[level] {
			t.current[level], t.waiting = b, false
		}
		limited = limited || b != nil
	}
	return limited
}

// mayRead reports whether the lane may read a request.
func (t *laneThrottle) mayRead(nowNs int64) bool { return !t.waiting || nowNs >= t.untilNs }

// charge takes the tokens of a request, and makes the lane wait if there are not enough.
func (t *laneThrottle) charge(nowNs int64, size uint32) {
	t.waiting, t.sinceNs, t.untilNs = false, nowNs, nowNs
	for level, b := range t.current {
		if b == nil {
			continue
		}
		if untilNs := b.take(nowNs, size); untilNs > t.untilNs {
			t.waiting, t.level, t.untilNs = true, throttleLevel(level), untilNs
		}
	}
}
