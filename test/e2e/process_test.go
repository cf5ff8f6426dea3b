// Package e2e runs the real programs as real processes.
package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// testTimeout bounds every wait; it is only reached by a test that fails.
const testTimeout = 60 * time.Second

// programs is where TestMain has built the programs.
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
	build := exec.Command("go", "build", "-tags", "faultinject", "-o", programs+"/", "../../cmd/...")
	if output, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build the programs: %w\n%s", err, output)
	}
	return m.Run(), nil
}

// output collects what a process prints, while it runs.
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

// spawn starts a program, which is killed when the test ends if it still runs.
func spawn(t testing.TB, name string, args ...string) *process {
	t.Helper()
	return spawnCommand(t, name, append([]string{filepath.Join(programs, name)}, args...)...)
}

// spawnCommand starts a command that runs the program named.
func spawnCommand(t testing.TB, name string, args ...string) *process {
	t.Helper()
	p := &process{t: t, name: name, cmd: exec.Command(args[0], args[1:]...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
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
			t.Logf("%s\nstdout: %s\nstderr: %s", strings.Join(args, " "), tail(p.stdout.String()), tail(p.stderr.String()))
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

// wait waits for the end of a process and returns its exit code, or -1 if a
// signal ended it.
func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(testTimeout):
		p.t.Fatalf("%s does not end", p.name)
	}
	panic("unreachable")
}

// waitWithin is wait with a bound that the product promises.
func (p *process) waitWithin(bound time.Duration) int {
	p.t.Helper()
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(bound):
		p.t.Errorf("%s has not ended within %v", p.name, bound)
		return p.wait()
	}
}

// terminate asks a process to end and expects it to do so in order.
func (p *process) terminate() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		p.t.Errorf("%s ended with %d after SIGTERM", p.name, code)
	}
}

// eventually waits until condition holds.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(testTimeout)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("timed out: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// awaitLog waits until a process has logged text.
func (p *process) awaitLog(text string) {
	p.t.Helper()
	eventually(p.t, fmt.Sprintf("%s logs %q", p.name, text), func() bool {
		select {
		case <-p.ended:
			p.t.Fatalf("%s ended before it logged %q", p.name, text)
		default:
		}
		return strings.Contains(p.stderr.String(), text)
	})
}

// chain is a target and a relay as processes.
type chain struct {
	t       testing.TB
	dir     string
	volumes []string
	address netip.AddrPort // of the target
	target  *process
	relay   *process
}

// startChain serves the given volumes, the first of which the relay forwards
// to.
func startChain(t testing.TB, volumes ...string) *chain {
	t.Helper()
	c := &chain{t: t, dir: t.TempDir(), volumes: volumes, address: listenAddress()}
	c.startTarget()
	c.relay = c.startRelay("comch")
	return c
}

func (c *chain) startTarget(more ...string) {
	c.t.Helper()
	file := filepath.Join(c.dir, "target.address")
	_ = os.Remove(file)
	args := []string{
		"--listen-address", c.address.Addr().String(), "--listen-port", fmt.Sprint(c.address.Port()),
		"--address-file", file,
	}
	for _, v := range c.volumes {
		args = append(args, "--volume", v)
	}
	args = append(args, targetFlags()...)
	c.target = spawn(c.t, "target", append(args, more...)...)
	eventually(c.t, "target listens", func() bool {
		select {
		case <-c.target.ended:
			c.t.Fatal("target ended at its start")
		default:
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return false
		}
		c.address = netip.MustParseAddrPort(strings.TrimSpace(string(text)))
		return true
	})
}

// startRelay starts a relay whose clients meet it in the directory named.
func (c *chain) startRelay(directory string, more ...string) *process {
	c.t.Helper()
	name, _, _ := strings.Cut(c.volumes[0], "=")
	args := []string{
		"run", "--storage-server", c.address.String(), "--volume", name,
		"--emulated-dir", filepath.Join(c.dir, directory),
	}
	args = append(args, relayFlags()...)
	relay := spawn(c.t, "zc-relay", append(args, more...)...)
	relay.awaitLog("listening for clients")
	return relay
}

// initiator starts an initiator on the chain.
func (c *chain) initiator(args ...string) *process {
	c.t.Helper()
	return c.initiatorAt("comch", args...)
}

func (c *chain) initiatorAt(directory string, args ...string) *process {
	c.t.Helper()
	return spawn(c.t, "initiator", append(args, "--emulated-dir", filepath.Join(c.dir, directory))...)
}

// mustRun runs an initiator that has to succeed and returns what it printed.
func (c *chain) mustRun(args ...string) string {
	c.t.Helper()
	p := c.initiator(args...)
	if code := p.wait(); code != 0 {
		c.t.Fatalf("initiator %s ended with %d", strings.Join(args, " "), code)
	}
	return p.stdout.String()
}
