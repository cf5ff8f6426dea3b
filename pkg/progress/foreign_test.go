// SPDX-License-Identifier: Apache-2.0

package progress_test

import (
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/progress"
)

// isReadable reports whether an event loop that watches an engine would wake within a time.
func isReadable(t *testing.T, e *progress.Engine, within time.Duration) bool {
	t.Helper()
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(e.Descriptor()), Events: unix.POLLIN}},
			int(within.Milliseconds()))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		return n > 0
	}
}

func foreignEngine(t *testing.T) (*progress.Engine, *mailbox) {
	t.Helper()
	engine, err := progress.NewEngine(progress.Policy{Mode: progress.Event})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	})
	box := newMailbox(t)
	if err := engine.Add(box); err != nil {
		t.Fatal(err)
	}
	return engine, box
}

func TestAForeignLoopWakesForWork(t *testing.T) {
	engine, box := foreignEngine(t)
	for name, work := range map[string]func(){"a post": box.post, "a command": engine.Wake} {
		for when, steps := range map[string][2]func(){
			"before the sleep": {work, engine.Arm}, "during the sleep": {engine.Arm, work},
		} {
			engine.Arm()
			if isReadable(t, engine, 0) {
				t.Fatalf("%s %s: the descriptor is readable before", name, when)
			}
			engine.Disarm()
			steps[0]()
			steps[1]()
			for range 2 { // level-triggered
				if !isReadable(t, engine, testkit.Patience) {
					t.Fatalf("%s %s: the descriptor is not readable", name, when)
				}
			}
			engine.Disarm()
			if engine.Progress() == 0 {
				t.Errorf("%s %s: there is nothing to do", name, when)
			}
			engine.Disarm() // has no effect
		}
	}
}

func TestAForeignLoopWakesForCommandsOfBeforeItsSleep(t *testing.T) {
	engine, _ := foreignEngine(t)
	ran := false
	engine.Do(func() { ran = true })
	engine.Arm()
	if !isReadable(t, engine, testkit.Patience) {
		t.Fatal("the descriptor is not readable")
	}
	engine.Disarm()
	if engine.Progress(); !ran {
		t.Error("the command has not run")
	}
}

// TestNoWakeUpOfAForeignLoopIsLost posts at any moment between two steps of the loop.
func TestNoWakeUpOfAForeignLoopIsLost(t *testing.T) {
	engine, box := foreignEngine(t)
	const posts = 2000
	var seen atomic.Int64
	posted := make(chan struct{})
	go func() {
		defer close(posted)
		for i := range int64(posts) {
			box.post()
			for seen.Load() <= i { // one at a time: a second post would hide a lost one
				progress.Yield()
			}
		}
	}()
	for seen.Load() < posts {
		seen.Add(int64(engine.Progress()))
		engine.Arm()
		if seen.Load() < posts && !isReadable(t, engine, testkit.Patience) {
			t.Fatalf("a wake-up was lost after %d posts", seen.Load())
		}
		engine.Disarm()
	}
	<-posted
}

// sleepless is a waiter that a thread cannot sleep on.
type sleepless struct{ *mailbox }

func (sleepless) Descriptor() int { return progress.NoDescriptor }

func TestAForeignLoopPollsWhatItCannotSleepOn(t *testing.T) {
	engine, box := foreignEngine(t)
	if err := engine.AddWaiter(sleepless{box}); err != nil {
		t.Fatal(err)
	}
	engine.Arm()
	if !isReadable(t, engine, testkit.Patience) {
		t.Error("the descriptor is not readable")
	}
	engine.Disarm()
}
