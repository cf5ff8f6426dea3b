// SPDX-License-Identifier: Apache-2.0

package bucket

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestABucketAllowsABurstAndThenOnePerInterval(t *testing.T) {
	const burst = 3
	b := New(time.Second)
	now := time.Unix(0, 0)
	for i, want := range []time.Duration{0, 0, 0, time.Second, 2 * time.Second} {
		if got, ok := b.Reserve(now, burst, time.Minute); !ok || got != want {
			t.Errorf("reservation %d waits %v, want %v", i, got, want)
		}
	}
	if wait, ok := b.Reserve(now, burst, 2*time.Second); ok || wait != 3*time.Second {
		t.Errorf("a reservation beyond the wait: %v, %v", wait, ok)
	}
	b.Cancel()
	if wait, ok := b.Reserve(now, burst, 2*time.Second); !ok || wait != 2*time.Second {
		t.Errorf("after another was cancelled: %v, %v", wait, ok)
	}
	if wait, ok := b.Reserve(now.Add(3*time.Second), burst, 0); !ok || wait != 0 {
		t.Errorf("once the interval has passed: %v, %v", wait, ok)
	}
	for i := range burst {
		if wait, ok := b.Reserve(now.Add(time.Hour), burst, 0); !ok || wait != 0 {
			t.Errorf("reservation %d of a burst after a rest: %v, %v", i, wait, ok)
		}
	}
}

func TestATokenIsReservedOnce(t *testing.T) {
	const burst, callers, attempts = 50, 4, 1000
	b := New(time.Hour)
	now := time.Now()
	var reserved atomic.Int64
	var calling sync.WaitGroup
	for range callers {
		calling.Go(func() {
			for range attempts {
				if _, ok := b.Reserve(now, burst, 0); ok {
					reserved.Add(1)
				}
			}
		})
	}
	calling.Wait()
	if n := reserved.Load(); n != burst {
		t.Errorf("%d reservations at once, want %d", n, burst)
	}
}

func TestTakingLeavesABucketInDebt(t *testing.T) {
	b := New(10)
	for _, c := range []struct {
		nowNs  int64
		n      uint32
		fullNs int64
	}{{-100, 1, -90}, {-100, 20, 110}, {50, 1, 120}, {500, 1, 510}, {500, 0, 500}} {
		if got := b.Take(c.nowNs, c.n); got != c.fullNs {
			t.Errorf("%d tokens at %d: full at %d, want %d", c.n, c.nowNs, got, c.fullNs)
		}
	}
}

func TestABucketWithoutARateSetsNoLimit(t *testing.T) {
	var b Bucket
	for range 3 {
		if fullNs := b.Take(7, 100); fullNs != 7 {
			t.Errorf("it is full at %d, want now", fullNs)
		}
		if wait, ok := b.Reserve(time.Now(), 1, 0); wait != 0 || !ok {
			t.Errorf("a reservation: %v, %v", wait, ok)
		}
	}
}
