// SPDX-License-Identifier: Apache-2.0

package seedtest

import (
	"flag"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestSeedsAreTheUsualOneUnlessAskedFor(t *testing.T) {
	for text, want := range map[string]uint64{"": usual, "7": 7, "18446744073709551615": 1<<64 - 1} {
		if seed, err := parse(text); seed != want || err != nil {
			t.Errorf("%s=%q: seed %d, %v", Variable, text, seed, err)
		}
	}
	for _, text := range []string{"0", "-1", "new", "1.5"} {
		if seed, err := parse(text); err == nil {
			t.Errorf("%s=%q is accepted as %d", Variable, text, seed)
		}
	}
	if seed, err := parse(fresh); seed != drawn || seed == 0 || err != nil {
		t.Errorf("%s=%s: seed %d, %v", Variable, fresh, seed, err)
	}
}

func TestRapidDrawsTheSameCasesAgain(t *testing.T) {
	if os.Getenv("RAPID_SEED") == "" && flag.Lookup(rapidFlag).Value.String() == "0" {
		t.Fatal("rapid draws a seed")
	}
	var runs [2][]uint64
	for i := range runs {
		Check(t, func(r *rapid.T) { runs[i] = append(runs[i], rapid.Uint64().Draw(r, "number")) })
	}
	if len(runs[0]) == 0 || !slices.Equal(runs[0], runs[1]) {
		t.Errorf("the first run has drawn %v, the second %v", runs[0], runs[1])
	}
}

func TestGeneratorsRepeat(t *testing.T) {
	a, b, other := Random(t, 0), Random(t, 0), Random(t, 1)
	for range 3 {
		drawn := a.Uint64()
		if b.Uint64() != drawn || other.Uint64() == drawn {
			t.Error("a generator does not repeat, or another stream is the same")
		}
	}
}
