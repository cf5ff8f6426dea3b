// SPDX-License-Identifier: Apache-2.0

// Package bucket provides the token bucket of all rate limits.
package bucket

import (
	"math"
	"sync/atomic"
	"time"
)

// Bucket is a token bucket, kept as the time at which it will be full. It holds a burst of tokens,
// which is up to each call, so that it can change at any time. The zero value sets no limit. The
// methods may be called concurrently, and never wait.
type Bucket struct {
	tokenNs float64      // how long a token takes to come back; 0 means no limit
	fullNs  atomic.Int64 // when all tokens will be there
}

// New returns a full bucket in which a token takes the given time to come back.
func New(token time.Duration) *Bucket {
	b := new(Bucket)
	b.Init(float64(token))
	return b
}

// Init fills the bucket, and sets how long a token takes to come back, in nanoseconds. Nobody may
// use the bucket yet.
func (b *Bucket) Init(tokenNs float64) {
	b.tokenNs = tokenNs
	b.fullNs.Store(math.MinInt64) // a clock need not be positive
}

// Take takes n tokens, even if that leaves the bucket in debt, and returns when it will be full. As
// much earlier as a burst takes to come back, the tokens would have been there. Two threads that
// find the bucket full at the same time both take their tokens from a full one.
func (b *Bucket) Take(nowNs int64, n uint32) (fullNs int64) {
	if b.tokenNs == 0 || n == 0 {
		return nowNs
	}
	if fullNs := b.fullNs.Load(); fullNs < nowNs {
		b.fullNs.CompareAndSwap(fullNs, nowNs)
	}
	return b.fullNs.Add(int64(float64(n) * b.tokenNs))
}

// Reserve takes a token of a bucket that holds burst of them, and returns how long to wait for it.
// If that is longer than most, it takes nothing and returns false.
func (b *Bucket) Reserve(now time.Time, burst int, most time.Duration) (time.Duration, bool) {
	nowNs, tokenNs := int64(now.Sub(origin)), int64(b.tokenNs)
	for {
		former := b.fullNs.Load()
		fullNs := max(former, nowNs)
		wait := time.Duration(max(0, fullNs-nowNs-int64(burst-1)*tokenNs))
		if wait > most {
			return wait, false
		}
		if b.fullNs.CompareAndSwap(former, fullNs+tokenNs) {
			return wait, true
		}
	}
}

// Cancel puts a token back that Reserve has taken.
func (b *Bucket) Cancel() { b.fullNs.Add(-int64(b.tokenNs)) }

// origin is what Reserve counts from: differences of times do not notice when the clock is set.
var origin = time.Now()
