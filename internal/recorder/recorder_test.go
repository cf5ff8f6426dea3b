// SPDX-License-Identifier: Apache-2.0

package recorder_test

import (
	"sync"
	"testing"

	"github.com/zc-relay/zc-relay/internal/recorder"
)

func TestEveryEntryIsCollectedOnceOrCountedAsLost(t *testing.T) {
	const threads, each = 4, 10000
	r := recorder.New[int](64)
	var recording sync.WaitGroup
	for thread := range threads {
		recording.Go(func() {
			for i := range each {
				entry := thread*each + i
				r.Record(&entry)
			}
		})
	}
	ended := make(chan struct{})
	go func() { recording.Wait(); close(ended) }()
	seen := make(map[int]bool)
	last := [threads]int{-1, -1, -1, -1}
	entries := make([]int, 16)
	for done := false; !done; {
		select {
		case <-ended:
			done = true
		default:
		}
		for n := r.Collect(entries); n > 0; n = r.Collect(entries) {
			for _, entry := range entries[:n] {
				if thread, i := entry/each, entry%each; seen[entry] || i <= last[thread] {
					t.Fatalf("entry %d of thread %d after %d", i, thread, last[thread])
				}
				seen[entry] = true
				last[entry/each] = entry % each
			}
		}
	}
	if uint64(len(seen))+r.Lost() != threads*each {
		t.Errorf("%d entries were collected and %d lost, of %d", len(seen), r.Lost(), threads*each)
	}
}
