// Package tooltest holds the one rule by which tests that need other programs skip.
package tooltest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Require skips a test when this machine lacks a tool: a program, or a file by its absolute path.
// In continuous integration, where the environment has CI=true, the test fails instead: nobody
// would notice that it no longer runs.
func Require(t testing.TB, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if installed(tool) {
			continue
		}
		if os.Getenv("CI") == "true" {
			t.Fatalf("%s is not installed", tool)
		}
		t.Skipf("%s is not installed", tool)
	}
}

func installed(tool string) bool {
	if filepath.IsAbs(tool) {
		_, err := os.Stat(tool)
		return err == nil
	}
	_, err := exec.LookPath(tool)
	return err == nil
}
