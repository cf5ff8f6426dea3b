// SPDX-License-Identifier: Apache-2.0

// Package testkit is what tests share that wait for something, run programs, or listen.
//
// A test that runs programs of this repository asks a Set for them. A set is built once in each
// test process, or not at all if a variable of the environment names a directory that has them, so
// that whoever runs many tests builds each set once:
//
//	ZC_RELAY_PROGRAMS            Plain      all of cmd/, pure Go
//	ZC_RELAY_RACE_PROGRAMS       Race       the daemons, with the race detector (cgo)
//	ZC_RELAY_EMULATION_PROGRAMS  Emulation  all of libdoca/cmd/ (cgo)
//	ZC_RELAY_MANUAL_PROGRAMS     Manual     all of cmd/, to write their manual pages, pure Go
//	ZC_RELAY_EXAMPLE_PROGRAMS    Examples   all of examples/, pure Go
//	ZC_RELAY_LIBDOCA             Libdoca    what libdoca/scripts/build.sh makes (cgo)
//	ZC_RELAY_LIBZCCLIENT         Libzcclient what libzcclient/scripts/build.sh makes (cgo)
//
// The command in programs/ builds sets and prints their variables.
package testkit

import (
	"context"
	"runtime"
	"testing"
	"time"
)

// Patience bounds every wait for what must happen. Only a test that hangs reaches it, also on a
// machine that has other work for all of its processors.
const Patience = 4 * time.Minute

// OnlyComplete skips a test that repeats what other tests show, such as a conformance suite over a
// hooked provider, unless the build has the tag complete or soak. The suites with peers run it. why
// says what the gate runs instead.
func OnlyComplete(t testing.TB, why string) {
	t.Helper()
	if !isComplete {
		t.Skipf("only builds with -tags complete run it: %s", why)
	}
}

// IsComplete reports whether OnlyComplete skips nothing.
func IsComplete() bool { return isComplete }

// Eventually waits until condition holds. what completes "waiting until".
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	const yields, longest = 100, 10 * time.Millisecond
	deadline := time.Now().Add(Patience)
	for tries, pause := 0, 50*time.Microsecond; !condition(); tries++ {
		if tries < yields {
			runtime.Gosched() // what is imminent is cheaper to wait for this way
			continue
		}
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting until %s", what)
		}
		time.Sleep(pause)
		pause = min(2*pause, longest)
	}
}

// Receive waits for a value from a channel, or until the channel is closed. what completes "waiting
// until".
func Receive[T any](t testing.TB, what string, channel <-chan T) T {
	t.Helper()
	timer := time.NewTimer(Patience)
	defer timer.Stop()
	select {
	case value := <-channel:
		return value
	case <-timer.C:
		t.Fatalf("timed out waiting until %s", what)
		panic("unreachable")
	}
}

// Context returns a context that ends when patience does. Unlike that of the test, it is still
// valid in functions that the test has registered with Cleanup later.
func Context(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	t.Cleanup(cancel)
	return ctx
}
