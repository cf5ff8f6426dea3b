package service_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
)

// testTimeout bounds every wait. Only a test that hangs reaches it.
const testTimeout = 2 * time.Minute

// programsVariable names the directory of the daemons under test, which are built if it is unset.
const programsVariable = "ZC_RELAY_E2E_PROGRAMS"

// built is the directory of the daemons that were built, if any.
var built string

// programs returns the directory of the daemons.
var programs = sync.OnceValues(func() (string, error) {
	if directory := os.Getenv(programsVariable); directory != "" {
		return directory, nil
	}
	directory, err := os.MkdirTemp("", "zc-relay-daemons")
	if err != nil {
		return "", err
	}
	built = directory
	build := exec.Command("go", "build", "-o", directory+"/", "../../zc-relay",
		"../../target")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // without hardware providers
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the daemons: %w\n%s", err, output)
	}
	return directory, nil
})

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if built != "" {
			_ = os.RemoveAll(built)
		}
		os.Exit(code)
	}))
}

// eventually waits until condition holds. what completes "waiting until".
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting until %s", what)
		}
	}
}

// daemon is a running daemon.
type daemon struct {
	t     testing.TB
	name  string
	cmd   *exec.Cmd
	mu    sync.Mutex
	log   bytes.Buffer // guarded by mu
	ended chan struct{}
}

func (d *daemon) Write(b []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.log.Write(b)
}

// logged reports whether the log contains text.
func (d *daemon) logged(text string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return bytes.Contains(d.log.Bytes(), []byte(text))
}

// spawn starts a program with additional environment variables. It is killed at the end of the test
// if it still runs.
func spawn(t testing.TB, environ []string, name string, args ...string) *daemon {
	t.Helper()
	return spawnBy(t, nil, environ, name, args...)
}

// spawnBy is spawn by way of another program, which is called with the command line; nil for none.
func spawnBy(t testing.TB, by, environ []string, name string, args ...string) *daemon {
	t.Helper()
	directory, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	line := slices.Concat(by, []string{filepath.Join(directory, name)}, args)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = append(os.Environ(), environ...)
	return launch(t, name, cmd)
}

// launch starts a command. It is killed at the end of the test if it still runs.
func launch(t testing.TB, name string, cmd *exec.Cmd) *daemon {
	t.Helper()
	d := &daemon{t: t, name: name, cmd: cmd, ended: make(chan struct{})}
	d.cmd.Stderr = d
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(d.ended)
		_ = d.cmd.Wait()
	}()
	t.Cleanup(func() {
		d.signal(syscall.SIGKILL)
		<-d.ended
		if t.Failed() {
			t.Logf("log of %s:\n%s", cmd, d.log.String())
		}
	})
	return d
}

func (d *daemon) signal(s os.Signal) { _ = d.cmd.Process.Signal(s) }

func (d *daemon) hasEnded() bool {
	select {
	case <-d.ended:
		return true
	default:
		return false
	}
}

// isKilledBy reports whether a signal has killed the daemon.
func (d *daemon) isKilledBy(s syscall.Signal) bool {
	if !d.hasEnded() {
		return false
	}
	status, ok := d.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == s
}

// wait returns the exit code, -1 after a signal.
func (d *daemon) wait() int {
	d.t.Helper()
	eventually(d.t, d.name+" exits", d.hasEnded)
	return d.cmd.ProcessState.ExitCode()
}

// awaitLog waits until the log contains text. It returns false if the daemon ends without it.
func (d *daemon) awaitLog(text string) bool {
	d.t.Helper()
	eventually(d.t, fmt.Sprintf("%s logs %q", d.name, text),
		func() bool { return d.logged(text) || d.hasEnded() })
	return d.logged(text)
}

// terminate sends SIGTERM and expects an orderly end.
func (d *daemon) terminate() {
	d.t.Helper()
	d.signal(syscall.SIGTERM)
	code := d.wait()
	if hasEnded := d.logged("\tended\t") || d.logged(`"msg":"ended"`); code != 0 || !hasEnded {
		d.t.Errorf("%s exited with %d after SIGTERM, and its log says that it ended: %v", d.name, code,
			hasEnded)
	}
}

func (d *daemon) descriptors() int {
	d.t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.cmd.Process.Pid))
	if err != nil {
		d.t.Fatal(err)
	}
	return len(entries)
}

// site is where a relay and a target run: a directory, and an address of the loopback interface.
type site struct {
	t       testing.TB
	dir     string
	address netip.Addr
	backend string   // of the volume
	faults  []string // flags of the target
	target  *daemon
	relay   *daemon
}

var sites atomic.Uint32

func newSite(t testing.TB) *site {
	pid, n := os.Getpid(), sites.Add(1)
	s := &site{t: t, dir: t.TempDir(),
		address: netip.AddrFrom4([4]byte{127, 128 | byte(pid>>8)&0x3f, byte(pid), byte(1 + n%250)})}
	s.backend = "file:" + s.path("disk.img") + ",size=16MiB"
	return s
}

func (s *site) path(name string) string { return filepath.Join(s.dir, name) }

// common is the configuration that both daemons share. Its timeouts exceed every wait, so that
// nothing depends on the speed of the machine.
const common = `log: {level: %s}
control: {timeout: 30m, keep_alive_dead_after: 1h}
shutdown: {drain_timeout: 30m}
`

// configure replaces the configuration files. A daemon that reads one meanwhile finds the former or
// the new one.
func (s *site) configure(level string) {
	s.t.Helper()
	write := func(name, text string) {
		err := os.WriteFile(s.path(name+".new"), []byte(fmt.Sprintf(common, level)+text), 0o600)
		if err == nil {
			err = os.Rename(s.path(name+".new"), s.path(name))
		}
		if err != nil {
			s.t.Fatal(err)
		}
	}
	write("target.yaml", fmt.Sprintf(`listen: {address: %q, port: 0, address_file: %q}
volumes: [{name: disk, backend: %q}]
`, s.address, s.path("target.address"), s.backend))
	address, err := os.ReadFile(s.path("target.address"))
	if err != nil {
		address = []byte("127.0.0.1:1") // unknown before the target runs
	}
	write("relay.yaml", fmt.Sprintf(`comch: {directory: %q}
channels: [{target: %q, volume: disk, io_timeout: 30m, reconnect: {session_wait: 30m}}]
`, s.path("comch"), strings.TrimSpace(string(address))))
}

// start starts the daemons with additional variables. It returns the one that has ended at once, if
// any.
func (s *site) start(environ ...string) (ended *daemon) {
	s.t.Helper()
	s.configure("info")
	s.target = spawn(s.t, environ, "target",
		append([]string{"--config", s.path("target.yaml")}, s.faults...)...)
	eventually(s.t, "the target listens", func() bool {
		_, err := os.Stat(s.path("target.address"))
		return err == nil || s.target.hasEnded()
	})
	if s.target.hasEnded() {
		return s.target
	}
	s.configure("info")
	s.relay = spawn(s.t, environ, "zc-relay", "run", "--config", s.path("relay.yaml"))
	if !s.relay.awaitLog("listening for clients") {
		return s.relay
	}
	return nil
}

// checkLeftovers fails if a daemon has left more than what was meant to stay.
func (s *site) checkLeftovers() {
	s.t.Helper()
	wasKilled := s.relay != nil && s.relay.cmd.ProcessState.ExitCode() < 0
	meant := map[string]bool{"disk.img": true, "target.yaml": true, "relay.yaml": true,
		"target.address": true, client.DefaultChannelName: wasKilled}
	err := filepath.WalkDir(s.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || meant[entry.Name()] ||
			strings.HasSuffix(entry.Name(), ".lock") {
			return err
		}
		s.t.Errorf("%s is left behind", path)
		return nil
	})
	if err != nil {
		s.t.Error(err)
	}
}

// loads returns the error that a daemon's configuration has with additional variables.
func (s *site) loads(name string, environ []string) error {
	var err error
	if name == "target" {
		_, err = config.LoadTarget(config.Sources{File: s.path("target.yaml"), Environ: environ})
	} else {
		_, err = config.LoadRelay(config.Sources{File: s.path("relay.yaml"), Environ: environ})
	}
	return err
}

// The numbers that the units and the warnings of the daemons depend on are those of real sessions.
func TestSessionsNeedNoMoreDescriptorsThanEstimated(t *testing.T) {
	const sessions, queues, workers = 3, 8, 2
	s := newSite(t)
	if ended := s.start(); ended != nil {
		t.Fatalf("%s ended at its start", ended.name)
	}
	idleTarget, idleRelay := s.target.descriptors(), s.relay.descriptors()
	for range sessions {
		v, err := client.Open(t.Context(), client.Config{
			Provider: emulated.New(emulated.Options{Directory: s.path("comch")}),
			Device:   emulated.DefaultHostDevice, Queues: queues, Depth: 4, BufferSize: 4096,
			SyncDepth: -1, ControlTimeout: testTimeout, IOTimeout: testTimeout,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(v.Abort)
	}
	relay := config.DefaultRelay()
	relay.Channels = []config.Channel{config.DefaultChannel()}
	relay.Channels[0].Limits.Queues = queues
	relay.Limits.Sessions = sessions
	ofRelay := relay.Descriptors(workers)
	relay.Limits.Sessions = 0
	ofRelay -= relay.Descriptors(workers)
	const kept = 16 // by workers for all sessions, and by the link to the target
	for _, c := range []struct {
		name             string
		growth, estimate int
	}{
		{"relay", s.relay.descriptors() - idleRelay, ofRelay},
		{"target", s.target.descriptors() - idleTarget,
			sessions * config.TargetSessionDescriptors(queues)},
	} {
		if c.growth > c.estimate+kept || 2*c.growth < c.estimate {
			t.Errorf("%d sessions with %d queues need %d descriptors of the %s, estimated were %d",
				sessions, queues, c.growth, c.name, c.estimate)
		}
		t.Logf("%s: %d descriptors, estimated %d", c.name, c.growth, c.estimate)
	}
}

func TestAFIFOAsConfigurationFileBlocksNothing(t *testing.T) {
	for _, name := range []string{"target", "relay"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			if ended := s.start(); ended != nil {
				t.Fatalf("%s ended at its start", ended.name)
			}
			file, d := s.path(name+".yaml"), map[string]*daemon{"target": s.target,
				"relay": s.relay}[name]
			if err := errors.Join(os.Remove(file), syscall.Mkfifo(file, 0o600)); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				d.signal(syscall.SIGHUP)
			}
			if !d.awaitLog("is a pipe, not a regular file") {
				t.Error("the FIFO is not rejected")
			}
			d.terminate()
			again := spawn(t, nil, d.name, d.cmd.Args[1:]...)
			if code := again.wait(); code != 2 || !again.logged("is a pipe") {
				t.Errorf("with a FIFO %s exited with %d", name, code)
			}
		})
	}
}
