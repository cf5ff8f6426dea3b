// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"math"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// awaitCounts waits until the counts of the rig's queue are as wanted. They are
// published after the response that a test has received.
func awaitCounts(t *testing.T, set *CounterSet, wanted func(*QueueCounts) bool) {
	t.Helper()
	deadline := time.Now().Add(testkit.Patience)
	for {
		queues := set.Queues()
		if len(queues) != 1 || queues[0].Queue != testQueue {
			t.Fatalf("there are counts of %d queues", len(queues))
		}
		if wanted(&queues[0]) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the queue's counts are %+v", queues[0].io)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestLatencyBucketsEndAtTheirBounds(t *testing.T) {
	for i := range LatencyBuckets - 1 {
		bound := latencyBoundsNs[i]
		if got := latencyBucket(bound); got != i {
			t.Errorf("%d ns are in bucket %d, want %d", bound, got, i)
		}
		if got := latencyBucket(bound + 1); got != i+1 {
			t.Errorf("%d ns are in bucket %d, want %d", bound+1, got, i+1)
		}
	}
	for ns, want := range map[uint64]int{0: 0, 1: 0, 953: 0, 954: 1,
		math.MaxUint64: LatencyBuckets - 1} {
		if got := latencyBucket(ns); got != want {
			t.Errorf("%d ns are in bucket %d, want %d", ns, got, want)
		}
	}
}

func TestEveryLatencyFallsIntoTheFirstBucketThatHoldsIt(t *testing.T) {
	seedtest.Check(t, func(t *rapid.T) {
		ns := rapid.Uint64().Draw(t, "ns") >> rapid.IntRange(0, 63).Draw(t, "shift")
		want := 0
		for ns > latencyBoundsNs[want] {
			want++
		}
		if got := latencyBucket(ns); got != want {
			t.Fatalf("%d ns are in bucket %d, want %d", ns, got, want)
		}
	})
}

func TestCountsAreVisibleOncePublished(t *testing.T) {
	var set CounterSet
	c := countersOf(&set, testQueue)
	c.begin()
	c.begin()
	c.complete(iomsg.OpWrite, status.Success, 4096, 2000)
	c.begin()
	c.complete(iomsg.OpRead, status.Code(1<<20), 4096, -1)
	c.reject(iomsg.OpTrim, status.InvalidValue)
	c.backpressure(NoReadCredit)
	if q := set.Queues()[0]; q.Total(iomsg.OpWrite) != 0 || q.InFlight != 0 {
		t.Errorf("before publication the counts are %+v", q.io)
	}
	c.publish()
	q := set.Queues()[0]
	if q.IO(iomsg.OpWrite, status.Success) != 1 || q.Bytes(iomsg.OpWrite) != 4096 ||
		q.InFlight != 1 || q.BackPressure(NoReadCredit) != 1 {
		t.Errorf("writes are %+v, %d bytes, %d in flight", q.io, q.Bytes(iomsg.OpWrite), q.InFlight)
	}
	if q.IO(iomsg.OpRead, status.Unknown) != 1 || q.Bytes(iomsg.OpRead) != 0 ||
		q.Latency(iomsg.OpRead).Buckets[0] != 1 {
		t.Errorf("reads are %+v", q.io)
	}
	if q.IO(iomsg.OpTrim, status.InvalidValue) != 1 || *q.Latency(iomsg.OpTrim) != (Latency{}) {
		t.Errorf("a rejected trim counts as %+v with latency %+v", q.io, q.Latency(iomsg.OpTrim))
	}
	if l := q.Latency(iomsg.OpWrite); l.SumNs != 2000 || l.Buckets[latencyBucket(2000)] != 1 {
		t.Errorf("latency of writes is %+v", l)
	}
}

// countersOf returns the counters of a new lane of a queue.
func countersOf(set *CounterSet, queue int) *counters {
	c := new(counters)
	set.include(c, queue)
	return c
}

func flush(c *counters) {
	c.begin()
	c.complete(iomsg.OpFlush, status.Success, 0, 10)
	c.publish()
}

func TestCountsOfOneQueueAddUpOverLanes(t *testing.T) {
	var set CounterSet
	first := countersOf(&set, 1)
	for _, c := range []*counters{first, countersOf(&set, 1), countersOf(&set, 0), first} {
		flush(c)
	}
	queues := set.Queues()
	if len(queues) != 2 || queues[0].Queue != 0 || queues[1].Queue != 1 {
		t.Fatalf("queues are %d", len(queues))
	}
	if queues[0].Total(iomsg.OpFlush) != 1 || queues[1].Total(iomsg.OpFlush) != 3 {
		t.Errorf("flushes are %d and %d", queues[0].Total(iomsg.OpFlush),
			queues[1].Total(iomsg.OpFlush))
	}
	if total := set.Total(); total.Total(iomsg.OpFlush) != 4 ||
		total.Latency(iomsg.OpFlush).Buckets[0] != 4 || total.Latency(iomsg.OpFlush).SumNs != 40 {
		t.Errorf("in all there are %d flushes", total.Total(iomsg.OpFlush))
	}
}

// What a lane has counted stays when it is closed; what it takes up does not.
func TestASetKeepsWhatClosedLanesHaveCounted(t *testing.T) {
	var set CounterSet
	for range 1000 {
		c := countersOf(&set, 3)
		flush(c)
		c.begin() // and never completed
		c.publish()
		set.retire(c)
		set.retire(c)
	}
	if !set.isIdle() || len(set.open) != 0 || len(set.closed) != 1 {
		t.Errorf("%d lanes and %d sums are left", len(set.open), len(set.closed))
	}
	flush(countersOf(&set, 3))
	queues := set.Queues()
	if len(queues) != 1 || queues[0].Queue != 3 || queues[0].Total(iomsg.OpFlush) != 1001 ||
		queues[0].InFlight != 0 {
		t.Errorf("queues are %d: %d flushes, %d in flight", len(queues),
			queues[0].Total(iomsg.OpFlush), queues[0].InFlight)
	}
	if set.isIdle() {
		t.Error("a set with an open lane is idle")
	}
}

func TestReadersNeverSeeACountDecrease(t *testing.T) {
	var set CounterSet
	c := countersOf(&set, 0)
	const batches, batch = 2000, 7
	var reading sync.WaitGroup
	stop := make(chan struct{})
	reading.Go(func() {
		var last uint64
		for {
			q := set.Queues()[0]
			if n := q.IO(iomsg.OpRead, status.Success); n < last || n%batch != 0 {
				t.Errorf("%d reads after %d", n, last)
			} else {
				last = n
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	for i := range batches {
		for range batch {
			c.complete(iomsg.OpRead, status.Success, 512, 5000)
		}
		c.publish()
		if i%10 == 0 {
			set.retire(c)
			c = countersOf(&set, 0)
		}
	}
	close(stop)
	reading.Wait()
	if q := set.Queues()[0]; q.Bytes(iomsg.OpRead) != batches*batch*512 {
		t.Errorf("%d bytes", q.Bytes(iomsg.OpRead))
	}
}

func TestCountingDoesNotAllocate(t *testing.T) {
	var c counters
	if n := testing.AllocsPerRun(100, func() {
		c.begin()
		c.complete(iomsg.OpRead, status.Success, 4096, 12345)
		c.publish()
	}); n != 0 {
		t.Errorf("%v allocations per IO", n)
	}
}

// BenchmarkCounting measures what counting costs an IO, by how many complete
// together.
func BenchmarkCounting(b *testing.B) {
	for name, batch := range map[string]int{"batch=1": 1, "batch=16": 16} {
		b.Run(name, func(b *testing.B) {
			var c counters
			ns := int64(20_000)
			for i := 0; b.Loop(); i++ {
				ns = ns*6364136223846793005 + 1442695040888963407
				c.begin()
				c.complete(iomsg.OpRead, status.Success, 4096, 20_000+ns>>48&0x3fff)
				if i%batch == 0 {
					c.publish()
				}
			}
		})
	}
}

func BenchmarkClock(b *testing.B) {
	var sum int64
	for b.Loop() {
		sum += nanotime()
	}
	_ = sum
}
