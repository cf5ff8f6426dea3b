// SPDX-License-Identifier: Apache-2.0

package datapath

import "testing"

func TestPercentilesAreBoundsOfTheBucketsThatHoldThem(t *testing.T) {
	var latency Latency
	latency.Buckets[80] = 90 // up to 2^-10 s
	latency.Buckets[88] = 9  // up to 2^-9 s
	latency.Buckets[LatencyBuckets-1] = 1
	latency.SumNs = 1000
	l := latency.status()
	for name, c := range map[string]struct {
		got  *uint64
		want uint64
	}{
		"mean": {l.Mean, 10}, "median": {l.P50, 976562}, "99 %": {l.P99, 1953125},
		"99.9 %": {l.P999, 64_000_000_000},
	} {
		if c.got == nil || *c.got != c.want {
			t.Errorf("%s is %v, want %d", name, c.got, c.want)
		}
	}
	if l := new(Latency).status(); l.Mean != nil || l.P50 != nil || l.P999 != nil {
		t.Errorf("without IOs there are %+v", l)
	}
}
