// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/seedtest"
)

func TestPercentilesMatchTheSortedLatencies(t *testing.T) {
	seedtest.Check(t, func(t *rapid.T) {
		latencies := rapid.SliceOfN(rapid.Int64Range(0, int64(time.Minute)), 1, 500).Draw(t,
			"latencies")
		first, second := newDistribution(), newDistribution()
		for i, l := range latencies {
			if i%2 == 0 {
				first.record(l)
			} else {
				second.record(l)
			}
		}
		first.merge(&second)
		l := first.latency()
		slices.Sort(latencies)
		sum := int64(0)
		for _, latency := range latencies {
			sum += latency
		}
		n := len(latencies)
		if l.Min != latencies[0] || l.Max != latencies[n-1] || l.Mean != sum/int64(n) ||
			first.count != uint64(n) {
			t.Fatalf("%+v for %v", *l, latencies)
		}
		for percent, got := range map[float64]int64{50: l.P50, 90: l.P90, 99: l.P99, 99.9: l.P999,
			99.99: l.P9999} {
			rank := percent / 100 * float64(n)
			low := latencies[max(int(math.Floor(rank)), 1)-1]
			high := latencies[max(int(math.Ceil(rank)), 1)-1]
			if got < low-low/1000-1 || got > high+high/1000+1 {
				t.Fatalf("the %v-th percentile is %d, want %d to %d", percent, got, low, high)
			}
		}
	})
}

func TestALatencyBeyondTheHistogramIsNotLost(t *testing.T) {
	d := newDistribution()
	d.record(3 * longestLatencyNs)
	if l := d.latency(); d.count != 1 || l.Max != 3*longestLatencyNs ||
		l.P50 < longestLatencyNs*99/100 {
		t.Errorf("latency is %+v", *l)
	}
}

func TestNothingMeasuredHasNoLatencyAndNoRate(t *testing.T) {
	d := newDistribution()
	if d.latency() != nil || ratio(1, 0) != 0 || ratio(0, 0) != 0 {
		t.Error("a figure was made of nothing")
	}
}
