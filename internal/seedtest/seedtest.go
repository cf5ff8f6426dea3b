// SPDX-License-Identifier: Apache-2.0

// Package seedtest hands out the seeds of tests that draw their cases at random. Such a test runs
// the same cases every time, so that it fails only for the change under test. Runs that look for
// new cases set the variable ZC_RELAY_SEED to "fresh", and the flag -count=1, because the go command
// does not repeat what has passed with the same variables.
package seedtest

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// Variable is the environment variable that holds a seed to use instead of the usual one, or fresh
// for a new seed in each test process.
const Variable = "ZC_RELAY_SEED"

// fresh is the value of Variable with which each process draws a seed.
const fresh = "fresh"

// usual is the seed of a run that does not ask for another one.
const usual = 1

// rapidFlag is the flag that holds rapid's seed. Given on the command line, it has precedence.
const rapidFlag = "rapid.seed"

// drawn is the seed of this process if Variable asks for a fresh one. It is short, because people
// type it, and not 0, which rapid takes for none.
var drawn = uint64(rand.Uint32()) + 1

func init() {
	seed, err := OfEnvironment()
	if err != nil || flag.Lookup(rapidFlag).Value.String() != "0" {
		return // the first test fails, or the environment has set rapid's seed
	}
	if err := flag.Set(rapidFlag, strconv.FormatUint(seed, 10)); err != nil {
		panic(err) // rapid has changed
	}
}

// OfEnvironment returns the seed of this process, for programs that tests start.
func OfEnvironment() (uint64, error) { return parse(os.Getenv(Variable)) }

func parse(text string) (uint64, error) {
	switch text {
	case "":
		return usual, nil
	case fresh:
		return drawn, nil
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil || seed == 0 {
		return 0, fmt.Errorf("%s=%q: must be a positive number or %q", Variable, text, fresh)
	}
	return seed, nil
}

// announced holds the names of running tests that have logged their seed.
var announced sync.Map

// Of returns the seed of a test, and logs how to repeat the test with it.
func Of(t testing.TB) uint64 {
	t.Helper()
	seed, err := OfEnvironment()
	if err != nil {
		t.Fatal(err)
	}
	if _, done := announced.LoadOrStore(t.Name(), true); !done {
		t.Logf("drawn from a seed; repeat with %s=%d", Variable, seed)
		t.Cleanup(func() { announced.Delete(t.Name()) })
	}
	return seed
}

// Random returns a generator for a test, and logs how to repeat the test with the same numbers. The
// generators of one test have different streams.
func Random(t testing.TB, stream uint64) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(Of(t), stream))
}

// Check is rapid.Check with the seed of this process. When property fails, rapid logs the flag that
// repeats it.
func Check(t *testing.T, property func(*rapid.T)) {
	t.Helper()
	// The go command repeats a test for another value of a variable only if the test reads it.
	if _, err := OfEnvironment(); err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, property)
}
