// SPDX-License-Identifier: Apache-2.0

// Package e2e runs the real programs as real processes.
package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

// These variables make the suite run programs over another network address, or with other flags, as
// test/verbs/run.sh does for another RDMA provider.
const (
	addressVariable     = "ZC_RELAY_E2E_ADDRESS"      // where targets listen
	targetFlagsVariable = "ZC_RELAY_E2E_TARGET_FLAGS" // additional flags, separated by spaces
	relayFlagsVariable  = "ZC_RELAY_E2E_RELAY_FLAGS"

	initiatorFlagsVariable = "ZC_RELAY_E2E_INITIATOR_FLAGS"
)

// listenAddress returns where a target of the test listens, with port 0. Without the variable, the
// address is the test's own, so that nobody else takes the port of a target that restarts.
func listenAddress(t testing.TB) netip.AddrPort {
	t.Helper()
	if address := os.Getenv(addressVariable); address != "" {
		return netip.AddrPortFrom(netip.MustParseAddr(address), 0)
	}
	return testkit.Endpoint(t)
}

func targetFlags() []string { return strings.Fields(os.Getenv(targetFlagsVariable)) }

func relayFlags() []string { return strings.Fields(os.Getenv(relayFlagsVariable)) }

func initiatorFlags() []string { return strings.Fields(os.Getenv(initiatorFlagsVariable)) }

// patience is the timeout of everything that is not the subject of a test. It exceeds every wait,
// so that a test passes only if a process ends for another reason.
const patience = "30m"

func TestMain(m *testing.M) { os.Exit(testkit.Main(m).Run()) }

// program returns the path of a program under test.
func program(t testing.TB, name string) string {
	t.Helper()
	return testkit.Plain.Program(t, name)
}

// TestCommandLines runs the scripts under testdata/script against the real programs. They have one
// command besides those of testscript:
//
//	exits CODE PROGRAM [ARGUMENT...]
//
// runs a program and fails unless its exit code is CODE. The commands stdout and stderr then
// examine its output.
func TestCommandLines(t *testing.T) {
	t.Parallel()
	programs := testkit.Plain.Directory(t)
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "script"),
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", programs+string(os.PathListSeparator)+env.Getenv("PATH"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
	})
}

func exits(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM [ARGUMENT...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	if exit, ok := err.(*exec.ExitError); ok {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("%v exited with %d, want %d", args[1:], got, want)
	}
}

// spawn starts a program, and kills it at the end of the test if it still runs.
func spawn(t testing.TB, name string, args ...string) *testkit.Process {
	t.Helper()
	return spawnCommand(t, name, append([]string{program(t, name)}, args...)...)
}

// spawnCommand is spawn for a command that runs the named program.
func spawnCommand(t testing.TB, name string, args ...string) *testkit.Process {
	t.Helper()
	return spawnWith(t, inheritance{}, name, args...)
}

// inheritance is what a process has from its parent besides the environment of this one.
type inheritance struct {
	files   []*os.File // from descriptor 3 on
	environ []string
}

// spawnWith is spawnCommand for a command that inherits more.
func spawnWith(t testing.TB, more inheritance, name string, args ...string) *testkit.Process {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.ExtraFiles, cmd.Env = more.files, os.Environ()
	if _, ok := t.(*testing.T); ok {
		// Two workers also where one is the default.
		cmd.Env = append(cmd.Env, "ZC_RELAY__WORKERS__COUNT=2", "ZC_TARGET__WORKERS__COUNT=2")
	}
	cmd.Env = append(cmd.Env, more.environ...)
	p := testkit.Start(t, cmd)
	p.Name = name
	return p
}

func tail(s string) string {
	const most = 4000
	if len(s) > most {
		return "…" + s[len(s)-most:]
	}
	return s
}

// wakeups returns how often the threads of a process have gone to sleep since they started.
func wakeups(t testing.TB, p *testkit.Process) int {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", p.Cmd.Process.Pid))
	if err != nil || len(tasks) == 0 {
		t.Fatalf("no threads of %s are found: %v", p.Name, err)
	}
	sum := 0
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has exited
		}
		_, rest, _ := strings.Cut(string(text), "\nvoluntary_ctxt_switches:")
		line, _, _ := strings.Cut(rest, "\n")
		n, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			t.Fatalf("%s: %v", task, err)
		}
		sum += n
	}
	return sum
}

// cpuTime returns the CPU time that a process has used.
func cpuTime(t testing.TB, p *testkit.Process) time.Duration {
	t.Helper()
	text := string(readFile(t, fmt.Sprintf("/proc/%d/stat", p.Cmd.Process.Pid)))
	fields := strings.Fields(text[strings.LastIndex(text, ")")+1:])
	var ticks int64
	for _, field := range fields[11:13] { // utime and stime
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	const ticksPerSecond = 100 // USER_HZ, the same on every Linux
	return time.Duration(ticks) * time.Second / ticksPerSecond
}
