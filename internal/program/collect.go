//go:build faultinject

package program

import (
	"fmt"
	"os"
	"runtime"
	"time"
)

// forceCollections starts the collections that the environment asks for.
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
	go func() {
		for range time.Tick(interval) {
			runtime.GC()
		}
	}()
}
