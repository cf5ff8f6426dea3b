//go:build faultinject

package program

import (
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"time"
)

// collectPercent makes the runtime collect as soon as that is worth the
// while: it leaves a distance of a MiB for sweeping, whatever the percentage.
const collectPercent = 5

// collectGarbage is what has to be allocated for that, with something to
// spare.
const collectGarbage = 5 << 18

// forceCollections starts the collections that the environment asks for, as
// the runtime does by itself: because something is allocated. runtime.GC would
// also sweep, against the runtime's own sweeper, and while one of the two has
// no core the other asks again and again, which takes more time than the
// collection.
func forceCollections() {
	text := os.Getenv(CollectVariable)
	if text == "" {
		return
	}
	interval, err := time.ParseDuration(text)
	if err != nil || interval <= 0 {
		fmt.Fprintf(os.Stderr, "%s=%q is no interval: write for instance 100ms\n", CollectVariable, text)
		os.Exit(ExitUsage)
	}
	debug.SetGCPercent(collectPercent)
	go func() {
		for range time.Tick(interval) {
			allocateGarbage()
		}
	}()
}

// allocateGarbage allocates memory in one piece, which is neither cleared nor
// touched.
func allocateGarbage() {
	var garbage strings.Builder
	garbage.Grow(collectGarbage)
}
