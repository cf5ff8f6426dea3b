// SPDX-License-Identifier: Apache-2.0

package service_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/cmd/internal/config"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testkit.Main(m)) }

// spawn starts a daemon with additional environment variables. It is killed at the end of the test
// if it still runs.
func spawn(t testing.TB, environ []string, name string, args ...string) *testkit.Process {
	t.Helper()
	return spawnBy(t, nil, environ, name, args...)
}

// spawnBy is spawn by way of another program, which is called with the command line; nil for none.
func spawnBy(
	t testing.TB, by, environ []string, name string, args ...string,
) *testkit.Process {
	t.Helper()
	line := slices.Concat(by, []string{testkit.Plain.Program(t, name)}, args)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = append(os.Environ(), environ...)
	p := testkit.Start(t, cmd)
	p.Name = name
	return p
}

// terminate sends SIGTERM to a daemon and expects an orderly end.
func terminate(t testing.TB, p *testkit.Process) {
	t.Helper()
	p.Terminate()
	if !p.HasLogged("\tended\t") && !p.HasLogged(`"msg":"ended"`) {
		t.Errorf("the log of %s does not say that it ended", p.Name)
	}
}

// site is where a relay and a target run: a directory, and an address of the loopback interface.
type site struct {
	t       testing.TB
	dir     string
	address netip.Addr
	backend string   // of the volume
	faults  []string // flags of the target
	target  *testkit.Process
	relay   *testkit.Process
	// openFiles is how many files the relay may open; 0 for as many as the test may.
	openFiles int
}

func newSite(t testing.TB) *site {
	s := &site{t: t, dir: t.TempDir(), address: testkit.Address(t)}
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
func (s *site) start(environ ...string) (ended *testkit.Process) {
	s.t.Helper()
	s.configure("info")
	s.target = spawn(s.t, environ, "target",
		append([]string{"--config", s.path("target.yaml")}, s.faults...)...)
	testkit.Eventually(s.t, "the target listens", func() bool {
		_, err := os.Stat(s.path("target.address"))
		return err == nil || s.target.HasEnded()
	})
	if s.target.HasEnded() {
		return s.target
	}
	s.configure("info")
	var by []string
	if s.openFiles > 0 {
		by = []string{"sh", "-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, s.openFiles)}
	}
	s.relay = spawnBy(s.t, by, environ, "zc-relay", "run", "--config", s.path("relay.yaml"))
	if !s.relay.AwaitLogOrEnd("listening for clients") {
		return s.relay
	}
	return nil
}

// checkLeftovers fails if a daemon has left more than what was meant to stay.
func (s *site) checkLeftovers() {
	s.t.Helper()
	wasKilled := s.relay != nil && s.relay.Cmd.ProcessState.ExitCode() < 0
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

// TestTheDescriptorsThatARelayNeedsSufficeForItsSessions opens as many sessions as fit into the
// limit of the process, by the calculation that config check warns by.
func TestTheDescriptorsThatARelayNeedsSufficeForItsSessions(t *testing.T) {
	const queues, workers, limit = 1, 2, 3200
	c := config.DefaultRelay()
	c.Channels = []config.Channel{config.DefaultChannel()}
	fits := config.FindShortage(c, workers, limit).SmallSessions
	s := newSite(t)
	s.openFiles = limit
	if ended := s.start(); ended != nil {
		t.Fatalf("%s ended at its start", ended.Name)
	}
	for i := range fits {
		v, err := client.Open(t.Context(), client.Config{
			Provider: emulated.New(emulated.Options{Directory: s.path("comch")}),
			Device:   emulated.DefaultHostDevice, Queues: queues, Depth: 4, BufferSize: 4096,
			SyncDepth: -1, ControlTimeout: testkit.Patience, IOTimeout: testkit.Patience,
		})
		if err != nil {
			t.Fatalf("session %d of %d that fit: %v", i+1, fits, err)
		}
		t.Cleanup(v.Abort)
	}
}

// The numbers that the units and the warnings of the daemons depend on are those of real sessions.
func TestSessionsNeedNoMoreDescriptorsThanEstimated(t *testing.T) {
	const sessions, queues, workers = 3, 8, 2
	s := newSite(t)
	if ended := s.start(); ended != nil {
		t.Fatalf("%s ended at its start", ended.Name)
	}
	idleTarget, idleRelay := s.target.Descriptors(), s.relay.Descriptors()
	for range sessions {
		v, err := client.Open(t.Context(), client.Config{
			Provider: emulated.New(emulated.Options{Directory: s.path("comch")}),
			Device:   emulated.DefaultHostDevice, Queues: queues, Depth: 4, BufferSize: 4096,
			SyncDepth: -1, ControlTimeout: testkit.Patience, IOTimeout: testkit.Patience,
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
		{"relay", s.relay.Descriptors() - idleRelay, ofRelay},
		{"target", s.target.Descriptors() - idleTarget,
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
				t.Fatalf("%s ended at its start", ended.Name)
			}
			file, d := s.path(name+".yaml"), map[string]*testkit.Process{"target": s.target,
				"relay": s.relay}[name]
			if err := errors.Join(os.Remove(file), syscall.Mkfifo(file, 0o600)); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				d.Signal(syscall.SIGHUP)
			}
			if !d.AwaitLogOrEnd("is a pipe, not a regular file") {
				t.Error("the FIFO is not rejected")
			}
			terminate(t, d)
			again := spawn(t, nil, d.Name, d.Cmd.Args[1:]...)
			if code := again.Wait(); code != 2 || !again.HasLogged("is a pipe") {
				t.Errorf("with a FIFO %s exited with %d", name, code)
			}
		})
	}
}
