// Package goldentest compares what a test produces with a file that keeps it.
package goldentest

import (
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

// Check fails the test if got is not what the file holds. With -update it
// writes the file.
func Check(t testing.TB, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if difference := cmp.Diff(string(want), string(got)); difference != "" {
		t.Errorf("%s has changed (-update writes it anew):\n%s", path, difference)
	}
}
