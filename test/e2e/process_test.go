// Package e2e runs the real programs as real processes.
package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// These variables make the suite run other programs, over another network address, or with other
// flags, as test/verbs/run.sh does for another RDMA provider.
const (
	// programsVariable names the directory of the programs, which are built if it is unset.
	programsVariable = "ZC_RELAY_E2E_PROGRAMS"

	addressVariable     = "ZC_RELAY_E2E_ADDRESS"      // where targets listen
	targetFlagsVariable = "ZC_RELAY_E2E_TARGET_FLAGS" // additional flags, separated by spaces
	relayFlagsVariable  = "ZC_RELAY_E2E_RELAY_FLAGS"

	initiatorFlagsVariable = "ZC_RELAY_E2E_INITIATOR_FLAGS"
)

// listenAddress returns where targets listen, with port 0. The loopback address is unique to this
// process, so that no other process can take the port of a target that is being restarted.
func listenAddress() netip.AddrPort {
	if address := os.Getenv(addressVariable); address != "" {
		return netip.AddrPortFrom(netip.MustParseAddr(address), 0)
	}
	pid := os.Getpid()
	address := [4]byte{127, 64 | byte(pid>>16), byte(pid >> 8), byte(pid)}
	return netip.AddrPortFrom(netip.AddrFrom4(address), 0)
}

func targetFlags() []string { return strings.Fields(os.Getenv(targetFlagsVariable)) }

func relayFlags() []string { return strings.Fields(os.Getenv(relayFlagsVariable)) }

func initiatorFlags() []string { return strings.Fields(os.Getenv(initiatorFlagsVariable)) }

// testTimeout bounds every wait. Only a test that hangs reaches it.
const testTimeout = 4 * time.Minute

// patience is the timeout of everything that is not the subject of a test. It exceeds every wait,
// so that a test passes only if a process ends for another reason.
const patience = "30m"

// programs is the directory of the programs under test.
var programs string

func TestMain(m *testing.M) {
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (code int, err error) {
	if programs = os.Getenv(programsVariable); programs != "" {
		return m.Run(), nil
	}
	if programs, err = os.MkdirTemp("", "zc-relay-e2e"); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(programs)) }()
	build := exec.Command("go", "build", "-o", programs+"/", "../../cmd/...")
	if output, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build the programs: %w\n%s", err, output)
	}
	return m.Run(), nil
}

// TestCommandLines runs the scripts under testdata/script against the real programs. They have one
// command besides those of testscript:
//
//	exits CODE PROGRAM [ARGUMENT...]
//
// runs a program and fails unless its exit code is CODE. The commands stdout and stderr then
// examine its output.
func TestCommandLines(t *testing.T) {
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

// eventually waits until condition holds. what completes "waiting until".
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); !condition(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting until %s", what)
		}
	}
}

// output collects the output of a running process. Any goroutine may read it.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// process is a running program.
type process struct {
	t      testing.TB
	name   string
	cmd    *exec.Cmd
	stdout output
	stderr output
	ended  chan struct{}
	err    error
}

// spawn starts a program, and kills it at the end of the test if it still runs.
func spawn(t testing.TB, name string, args ...string) *process {
	t.Helper()
	return spawnCommand(t, name, append([]string{filepath.Join(programs, name)}, args...)...)
}

// spawnCommand is spawn for a command that runs the named program.
func spawnCommand(t testing.TB, name string, args ...string) *process {
	t.Helper()
	return spawnWith(t, nil, name, args...)
}

// spawnWith is spawnCommand for a command that inherits files, from descriptor 3 on.
func spawnWith(t testing.TB, files []*os.File, name string, args ...string) *process {
	t.Helper()
	p := &process{t: t, name: name, cmd: exec.Command(args[0], args[1:]...),
		ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.ExtraFiles = &p.stdout, &p.stderr, files
	p.cmd.WaitDelay = 10 * time.Second // for a child that outlives it and keeps the output open
	if _, ok := t.(*testing.T); ok {
		// Two workers also where one is the default.
		p.cmd.Env = append(os.Environ(), "ZC_RELAY__WORKERS__COUNT=2",
			"ZC_TARGET__WORKERS__COUNT=2")
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.signal(syscall.SIGKILL)
		<-p.ended
		if t.Failed() {
			t.Logf("%s\nstdout: %s\nstderr: %s", strings.Join(args, " "), tail(p.stdout.String()),
				tail(p.stderr.String()))
		}
	})
	return p
}

func tail(s string) string {
	const most = 4000
	if len(s) > most {
		return "…" + s[len(s)-most:]
	}
	return s
}

func (p *process) signal(s os.Signal) { _ = p.cmd.Process.Signal(s) }

// wait waits for the process to exit and returns its exit code, or -1 if a signal killed it.
func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(testTimeout):
		p.t.Fatalf("%s does not exit", p.name)
	}
	panic("unreachable")
}

// terminate sends SIGTERM and expects exit code 0.
func (p *process) terminate() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		p.t.Errorf("%s exited with %d after SIGTERM", p.name, code)
	}
}

// awaitLog waits until the log of a process contains text.
func (p *process) awaitLog(text string) {
	p.t.Helper()
	eventually(p.t, fmt.Sprintf("%s logs %q", p.name, text), func() bool {
		select {
		case <-p.ended:
			p.t.Fatalf("%s exited before it logged %q", p.name, text)
		default:
		}
		return strings.Contains(p.stderr.String(), text)
	})
}

// stopped reports whether SIGSTOP has stopped every thread of a process.
func (p *process) stopped() bool {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
	if err != nil || len(stats) == 0 {
		return false
	}
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			return false
		}
		_, state, _ := strings.Cut(string(text), ") ")
		if !strings.HasPrefix(state, "T") {
			return false
		}
	}
	return true
}

// wakeups returns how often the threads of a process have gone to sleep since they started.
func wakeups(t testing.TB, p *process) int {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", p.cmd.Process.Pid))
	if err != nil || len(tasks) == 0 {
		t.Fatalf("no threads of %s are found: %v", p.name, err)
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
func cpuTime(t testing.TB, p *process) time.Duration {
	t.Helper()
	text := string(readFile(t, fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid)))
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

func descriptors(t testing.TB, p *process) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}
