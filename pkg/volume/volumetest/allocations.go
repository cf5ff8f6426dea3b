package volumetest

import (
	"testing"

	"github.com/zc-relay/zc-relay/pkg/volume"
)

// testAllocations counts the allocations of all threads while requests of
// every kind run.
func testAllocations(t *testing.T, v volume.Volume) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	queue := newQueue(t, v, 4)
	defer closeQueue(t, queue)
	block := uint64(v.Info().BlockSize)
	var requests [4]volume.Request
	completed := make([]*volume.Request, len(requests))
	for i, operation := range offered(v.Info())[:4] {
		requests[i] = volume.Request{Operation: operation, Offset: uint64(i) * block, Length: block, Buffer: make([]byte, block)}
	}
	allocations := testing.AllocsPerRun(200, func() {
		for i := range requests {
			if err := queue.Submit(&requests[i]); err != nil {
				t.Fatal(err)
			}
		}
		for done := 0; done < len(requests); {
			n := queue.Poll(completed)
			if done += n; n == 0 {
				sleep(t, queue)
			}
		}
	})
	if allocations > 0 {
		t.Errorf("%v allocations for %d requests", allocations, len(requests))
	}
}
