// SPDX-License-Identifier: Apache-2.0

package program

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
)

// A service manager takes ExitUsage for a mistake that a restart repeats.
func TestACrashIsNoWrongCall(t *testing.T) {
	if os.Getenv("CRASH_TEST_CHILD") != "" {
		os.Args = os.Args[:1]
		Main(&cobra.Command{Use: "tool", RunE: func(*cobra.Command, []string) error {
			panic("a mistake in this program")
		}})
	}
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	child.Env = append(os.Environ(), "CRASH_TEST_CHILD=1", "GOTRACEBACK=")
	child.Dir = t.TempDir()
	err := child.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGABRT {
		t.Errorf("a program that crashes ends with %v, want %v", err, syscall.SIGABRT)
	}
}
