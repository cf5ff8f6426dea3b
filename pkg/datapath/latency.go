// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"math"
	"math/bits"
	"time"
)

// Latencies are counted in the buckets of a Prometheus native histogram with schema LatencySchema:
// bucket i ends at 2^(i/8-20) seconds. The first bucket holds everything up to about a microsecond,
// the last everything beyond 64 seconds.
const (
	// LatencySchema divides each power of two into 2^LatencySchema buckets, which makes a bucket 9%
	// wide.
	LatencySchema = 3
	// LatencyFirstExponent and LatencyLastExponent are the powers of two, in seconds, at which the
	// first bucket and the last but one end.
	LatencyFirstExponent = -20
	LatencyLastExponent  = 6

	latencyBucketsPerOctave = 1 << LatencySchema
	// LatencyBuckets is the number of buckets.
	LatencyBuckets = (LatencyLastExponent-LatencyFirstExponent)*latencyBucketsPerOctave + 2
)

// LatencyBound returns the upper bound of bucket i in seconds. The last bucket has no bound.
func LatencyBound(i int) float64 {
	return math.Exp2(float64(i)/latencyBucketsPerOctave + LatencyFirstExponent)
}

// latencyBoundsNs holds the bounds in whole nanoseconds; the last stands for no bound.
var latencyBoundsNs = func() (bounds [LatencyBuckets]uint64) {
	const nanosecondsPerSecond = 1e9
	for i := range LatencyBuckets - 1 {
		bounds[i] = uint64(LatencyBound(i) * nanosecondsPerSecond)
	}
	bounds[LatencyBuckets-1] = math.MaxUint64
	return bounds
}()

// A latency's cell is determined by its leading one bit and the cellBits bits after it. A cell is
// narrower than a bucket, so it overlaps one or two buckets.
const (
	cellBits       = 4
	cellsPerOctave = 1 << cellBits
)

// firstBucketOfCell holds the bucket of the smallest latency of each cell.
var firstBucketOfCell = func() (buckets [(64 + 1) * cellsPerOctave]uint8) {
	for cell := range buckets {
		length, mantissa := cell/cellsPerOctave, uint64(cell%cellsPerOctave|cellsPerOctave)
		if length == 0 {
			continue
		}
		smallest := mantissa << (64 - 1 - cellBits) >> (64 - length)
		bucket := 0
		for smallest > latencyBoundsNs[bucket] {
			bucket++
		}
		buckets[cell] = uint8(bucket)
	}
	return buckets
}()

// latencyBucket returns the index of the first bucket whose bound is at least ns.
func latencyBucket(ns uint64) int {
	length := bits.Len64(ns)
	mantissa := int(ns << (64 - length) >> (64 - 1 - cellBits) & (cellsPerOctave - 1))
	bucket := int(firstBucketOfCell[length*cellsPerOctave+mantissa])
	if ns > latencyBoundsNs[bucket] {
		bucket++
	}
	return bucket
}

// processStart is the origin of nanotime.
var processStart = time.Now()

// nanotime returns a monotonic time in nanoseconds. time.Since reads only the monotonic clock,
// which costs half as much as time.Now.
func nanotime() int64 { return int64(time.Since(processStart)) }
