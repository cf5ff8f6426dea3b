package datapath

import (
	"math/bits"
	"sync/atomic"
)

// LatencyBuckets is the number of buckets of a LatencyHistogram.
const LatencyBuckets = 26

// firstBucketBits makes the first bucket end at 1024 ns.
const firstBucketBits = 10

// LatencyHistogram counts latencies in buckets that double in width: bucket i
// ends at LatencyBound(i), the last is open. One thread records, any may read.
type LatencyHistogram struct {
	buckets [LatencyBuckets]atomic.Uint64
	sumNs   atomic.Uint64
}

// LatencyBound is the upper bound of bucket i in nanoseconds, from 1.024 µs
// to 17 s; the bucket behind the last bound has none.
func LatencyBound(i int) uint64 { return 1 << (firstBucketBits + i) }

// Record counts one latency. Negative values count as 0.
func (h *LatencyHistogram) Record(latencyNs int64) {
	ns := uint64(max(latencyNs, 0))
	h.buckets[bucketOf(ns)].Add(1)
	h.sumNs.Add(ns)
}

// bucketOf finds the first bucket whose bound is not below ns.
func bucketOf(ns uint64) int {
	if ns <= 1<<firstBucketBits {
		return 0
	}
	return min(bits.Len64(ns-1)-firstBucketBits, LatencyBuckets-1)
}

// Snapshot reads the counts: how many in each bucket, and the sum of all
// latencies in nanoseconds.
func (h *LatencyHistogram) Snapshot() (counts [LatencyBuckets]uint64, sumNs uint64) {
	for i := range h.buckets {
		counts[i] = h.buckets[i].Load()
	}
	return counts, h.sumNs.Load()
}
