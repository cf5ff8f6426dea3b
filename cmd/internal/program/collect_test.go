// SPDX-License-Identifier: Apache-2.0

package program

import (
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"
)

func TestEachPieceOfGarbageCausesACollection(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(collectPercent))
	for range 5 {
		before := collections()
		allocateGarbage()
		for deadline := time.Now().Add(2 * time.Minute); collections() == before; {
			if time.Now().After(deadline) {
				t.Fatal("no collection follows")
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// collections returns the number of completed garbage collections.
func collections() uint64 {
	sample := []metrics.Sample{{Name: "/gc/cycles/automatic:gc-cycles"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
