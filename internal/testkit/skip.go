// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// RequireTools skips a test when this machine lacks a tool: a program, or a file by its absolute
// path. In continuous integration, where the environment has CI=true, the test fails instead:
// nobody would notice that it no longer runs.
func RequireTools(t testing.TB, tools ...string) {
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

// SkipIfNotSupported is the one rule by which conformance suites skip a test. It judges the error
// of an attempt to use something optional. No error lets the test continue. status.NotSupported
// skips it: the provider has said that it cannot do this. Any other error fails it, because a
// provider that is broken must not look like one that is merely limited. action names the attempt,
// for instance "open device 03:00.0".
func SkipIfNotSupported(t testing.TB, action string, err error) {
	t.Helper()
	switch {
	case err == nil:
	case errors.Is(err, status.NotSupported):
		t.Skipf("%s: %v", action, err)
	default:
		t.Fatalf("%s: %v", action, err)
	}
}
