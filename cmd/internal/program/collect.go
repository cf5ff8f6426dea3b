// SPDX-License-Identifier: Apache-2.0

package program

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"
)

// collectVariable is the environment variable by which benchmarks force garbage collections: their
// interval, for instance "100ms".
const collectVariable = "ZC_RELAY_COLLECT_INTERVAL"

// collectPercent makes the runtime collect at the next opportunity: whatever the percentage, it
// leaves a distance of 1 MiB for sweeping.
const collectPercent = 5

// collectGarbage is the number of bytes to allocate to cause a collection, with some reserve.
const collectGarbage = 5 << 18

// forceCollections starts the collections that the environment asks for. It causes them as programs
// do, by allocating. runtime.GC would also sweep, in competition with the runtime's own sweeper;
// while one of the two has no core, the other retries again and again, which takes longer than the
// collection.
func forceCollections() {
	text := os.Getenv(collectVariable)
	if text == "" {
		return
	}
	interval, err := time.ParseDuration(text)
	if err != nil || interval <= 0 {
		fmt.Fprintf(os.Stderr, "%s=%q is not an interval: write for instance 100ms\n",
			collectVariable, text)
		os.Exit(ExitUsage)
	}
	debug.SetGCPercent(collectPercent)
	go func() {
		for range time.Tick(interval) {
			allocateGarbage()
		}
	}()
}

// allocateGarbage allocates memory in one piece, without clearing or touching it.
func allocateGarbage() {
	var garbage strings.Builder
	garbage.Grow(collectGarbage)
}
