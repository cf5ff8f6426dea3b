// SPDX-License-Identifier: Apache-2.0

package progress_test

import (
	"fmt"
	"log"
	"runtime"

	"github.com/zc-relay/zc-relay/pkg/progress"
)

// inbox is a source whose work arrives on a channel.
type inbox struct {
	arrived chan int
	handled int
}

// Poll handles what has arrived and returns the amount of work done. It never blocks.
func (b *inbox) Poll() int {
	select {
	case request := <-b.arrived:
		fmt.Println("handled request", request)
		b.handled++
		return 1
	default:
		return 0
	}
}

// One thread polls its sources as long as they have work, and sleeps when they have none. Other
// goroutines wake it, or have it run commands.
func Example() {
	engine, err := progress.NewEngine(progress.Policy{Mode: progress.Adaptive})
	if err != nil {
		log.Fatal(err)
	}
	source := &inbox{arrived: make(chan int, 8)}
	if err := engine.Add(source); err != nil {
		log.Fatal(err)
	}

	go func() {
		// This source is not a Waiter, so the goroutine that gives it work wakes the engine.
		source.arrived <- 1
		engine.Wake()
		// A command runs on the engine's thread, where it may use the source.
		engine.Do(func() { source.arrived <- 2 })
	}()

	runtime.LockOSThread() // the engine belongs to this thread
	defer runtime.UnlockOSThread()
	for source.handled < 2 {
		engine.Idle(engine.Progress())
	}
	if err := engine.Close(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// handled request 1
	// handled request 2
}
