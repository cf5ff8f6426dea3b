// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// serviceManager records the notifications of daemons (sd_notify), and has a file descriptor store.
type serviceManager struct {
	path  string
	mu    sync.Mutex
	heard []string
	files map[string]*os.File // by name
}

func startServiceManager(t *testing.T) *serviceManager {
	t.Helper()
	m := &serviceManager{path: filepath.Join(t.TempDir(), "notify"),
		files: make(map[string]*os.File)}
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	var listening sync.WaitGroup
	listening.Go(func() {
		b, rights := make([]byte, 4096), make([]byte, 4096)
		for {
			n, controls, _, _, err := socket.ReadMsgUnix(b, rights)
			if err != nil {
				return
			}
			m.mu.Lock()
			m.heard = append(m.heard, string(b[:n]))
			m.store(string(b[:n]), rights[:controls])
			m.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		_ = socket.Close()
		listening.Wait()
		for _, file := range m.files {
			_ = file.Close()
		}
	})
	return m
}

// environ returns the environment that makes a program notify the manager, for a chain.
func (m *serviceManager) environ(program string, more ...string) map[string][]string {
	return map[string][]string{program: append(more, "NOTIFY_SOCKET="+m.path)}
}

// storeCommand matches a notification that adds a file to the store, or removes it.
var storeCommand = regexp.MustCompile(`^FDSTORE(REMOVE)?=1\n(?:FDPOLL=0\n)?FDNAME=([^:\n]+)$`)

// store carries out what a notification says about files.
func (m *serviceManager) store(message string, rights []byte) {
	command := storeCommand.FindStringSubmatch(message)
	if command == nil {
		return
	}
	name := command[2]
	if file := m.files[name]; file != nil {
		_ = file.Close()
		delete(m.files, name)
	}
	if command[1] != "" {
		return
	}
	controls, _ := unix.ParseSocketControlMessage(rights)
	for i := range controls {
		descriptors, _ := unix.ParseUnixRights(&controls[i])
		for _, fd := range descriptors {
			unix.CloseOnExec(fd)
			m.files[name] = os.NewFile(uintptr(fd), name)
		}
	}
}

// kept returns duplicates of the files in the store, which a daemon may remove at any time, and
// their names as LISTEN_FDNAMES has them.
func (m *serviceManager) kept(t testing.TB) (files []*os.File, names string) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	sorted := slices.Sorted(maps.Keys(m.files))
	for _, name := range sorted {
		fd, err := unix.FcntlInt(m.files[name].Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, os.NewFile(uintptr(fd), name))
	}
	return files, strings.Join(sorted, ":")
}

// count returns how many notifications match a regular expression as a whole.
func (m *serviceManager) count(pattern string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, expression := 0, regexp.MustCompile("^(?:"+pattern+")$")
	for _, message := range m.heard {
		if expression.MatchString(message) {
			n++
		}
	}
	return n
}

func TestDaemonsNotifyTheServiceManager(t *testing.T) {
	t.Parallel()
	for _, daemon := range []string{"target", "zc-relay"} {
		t.Run(daemon, func(t *testing.T) {
			m := startServiceManager(t)
			c := startTLSTargetIn(t, m.environ(daemon, "WATCHDOG_USEC=300000"))
			p := c.target
			if daemon == "zc-relay" {
				p = c.startRelay("comch", tlsFlagsOf(c.ofRelay)...)
			}
			testkit.Eventually(t, daemon+" is ready",
				func() bool { return m.count("READY=1") >= 1 && m.count("STATUS=ready") >= 1 })
			testkit.Eventually(t, "the watchdog is fed", func() bool { return m.count("WATCHDOG=1") >= 5 })
			p.Signal(syscall.SIGHUP)
			p.AwaitLog("reloaded")
			testkit.Eventually(t, "the reload is announced",
				func() bool { return m.count(`RELOADING=1\nMONOTONIC_USEC=[0-9]+`) >= 1 })
			p.Terminate()
			testkit.Eventually(t, "the end is announced",
				func() bool { return m.count(`STOPPING=1\nEXTEND_TIMEOUT_USEC=[0-9]+`) >= 1 })
		})
	}
}

func TestSIGHUPKeepsTheCertificateIfTheNewOneIsInvalid(t *testing.T) {
	t.Parallel()
	c := startTLSTarget(t)
	c.relay = c.startRelay("comch", tlsFlagsOf(c.ofRelay)...)
	other := c.authority.Write(filepath.Join(c.dir, "other"), []string{"relay.test"})
	mustCopy(t, other.Key, c.ofRelay.Key)
	c.relay.Signal(syscall.SIGHUP)
	c.relay.AwaitLog("private key does not match")
	c.mustServe("comch")
	mustCopy(t, other.Certificate, c.ofRelay.Certificate)
	before := strings.Count(c.relay.Stderr.String(), "loaded TLS certificate")
	c.relay.Signal(syscall.SIGHUP)
	testkit.Eventually(t, "the new certificate is loaded", func() bool {
		return strings.Count(c.relay.Stderr.String(), "loaded TLS certificate") > before
	})
	c.mustServe("comch")
}

// configure writes the configuration of a relay: head, and the given channels to the chain's
// target.
func (c *chain) configure(file, head string, channels ...string) {
	c.t.Helper()
	var text strings.Builder
	fmt.Fprintf(&text, "%scomch: {directory: %q}\nchannels:\n", head, filepath.Join(c.dir, "comch"))
	for _, name := range channels {
		fmt.Fprintf(&text, "  - {name: %s, target: %q, volume: disk}\n", name, c.address)
	}
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

func TestSIGHUPAppliesChangesAndNamesThoseThatNeedARestart(t *testing.T) {
	t.Parallel()
	c := &chain{t: t, dir: t.TempDir(), volumes: []string{"disk=memory:64MiB"},
		address: listenAddress(t)}
	c.startTarget()
	file := filepath.Join(c.dir, "relay.yaml")
	c.configure(file, "", "first", "second")
	c.relay = spawn(t, "zc-relay", append([]string{"run", "--config", file, "--metrics-listen",
		"127.0.0.1:0"}, relayFlags()...)...)
	c.relay.AwaitLog("listening for clients")
	live := c.initiator("verify", "--command-channel-name", "first", "--queues", "1",
		"--queue-depth", "4", "--length", "256KiB", "--runtime", patience, "--output", "json")
	c.awaitIO()

	c.configure(file, "log: {level: debug}\nworkers: {spin_time: 1ms}\n", "first", "third")
	c.relay.Signal(syscall.SIGHUP)
	for _, want := range []string{`workers.spin_time: \"200µs\" is now \"1ms\"`, "needs a restart",
		`/third] added`, `/second] removed`, `log.level: \"info\" is now \"debug\"`} {
		c.relay.AwaitLog(want)
	}
	c.mustRun("info", "--command-channel-name", "third")
	c.relay.AwaitLog("removed channel is released")
	lost := c.initiator("info", "--command-channel-name", "second", "--control-timeout", "200ms")
	if code := lost.Wait(); code != 3 {
		t.Errorf("info on the removed channel exited with %d", code)
	}

	if err := os.WriteFile(file, []byte("log: {levels: info}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.relay.Signal(syscall.SIGHUP)
	c.relay.AwaitLog("relay.yaml:1: log.levels: unknown key")
	c.mustRun("info", "--command-channel-name", "third")
	interruptVerify(t, live)
	c.relay.Terminate()
}

// clientConfig returns the configuration of a client in this process, with one queue.
func (c *chain) clientConfig(depth int) client.Config {
	const block = 4096
	return client.Config{
		Provider: emulated.New(emulated.Options{Directory: filepath.Join(c.dir, "comch")}),
		Device:   emulated.DefaultHostDevice, Queues: 1, Depth: depth, BufferSize: block,
		SyncDepth:      -1,
		ControlTimeout: testkit.Patience, IOTimeout: testkit.Patience,
	}
}

// openBusy opens the chain's volume, calls opened, and submits depth requests. It returns when all
// of them are in flight in the daemon, or completed by it.
func (c *chain) openBusy(
	kind client.RequestType, depth int, daemon *testkit.Process, opened func(),
) *client.Volume {
	c.t.Helper()
	v, err := client.Open(testkit.Context(c.t), c.clientConfig(depth))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(v.Abort)
	opened()
	for i := range uint64(depth) {
		err := v.Queue(0).Submit(&client.Request{Type: kind, Length: 4096, Offset: i * 4096,
			Memory: i * 4096, Tag: i})
		if err != nil {
			c.t.Fatal(err)
		}
	}
	v.Queue(0).Ring()
	prefix := map[*testkit.Process]string{c.relay: "zc_relay_", c.target: "zc_target_"}[daemon]
	testkit.Eventually(c.t, daemon.Name+" has the requests in flight", func() bool {
		text := c.scrape(daemon)
		taken := sumMetric(text, prefix+"io_in_flight") + sumMetric(text, prefix+"io_total")
		return taken == float64(depth)
	})
	return v
}

// outcomes polls until count requests have completed, and counts them by their code.
func outcomes(t *testing.T, v *client.Volume, count int) map[status.Code]int {
	t.Helper()
	codes := map[status.Code]int{}
	results := make([]client.Result, count)
	total := 0
	testkit.Eventually(t, "every request has completed", func() bool {
		n := v.Queue(0).Poll(results)
		for _, r := range results[:n] {
			codes[r.Code]++
		}
		total += n
		return total >= count
	})
	return codes
}

func TestADaemonFinishesWhatIsInFlightBeforeItExits(t *testing.T) {
	t.Parallel()
	const depth = 8
	ends := func(t *testing.T, v *client.Volume, name string, daemon *testkit.Process) {
		t.Helper()
		if codes := outcomes(t, v, depth); codes[status.Success] != depth {
			t.Errorf("the requests ended with %v", codes)
		}
		awaitEnd(t, v)
		if err := v.Err(); !errors.Is(err, status.Shutdown) ||
			!strings.Contains(err.Error(), "the "+name+" is shutting down (drain)") {
			t.Errorf("the client is told %v", err)
		}
		if code := daemon.Wait(); code != 0 {
			t.Errorf("the %s exited with %d", name, code)
		}
	}
	t.Run("relay", func(t *testing.T) {
		c := startObservedChain(t, "disk=memory:16MiB")
		v := c.openBusy(client.Write, depth, c.relay, func() {
			c.target.Stop()
		})
		c.relay.Signal(syscall.SIGTERM)
		testkit.Eventually(t, "the relay is not ready", func() bool {
			code, body := get(t, c.relay, "/readyz")
			return code == http.StatusServiceUnavailable && strings.Contains(body, "drain")
		})
		c.target.Continue()
		ends(t, v, "relay", c.relay)
	})
	t.Run("target", func(t *testing.T) {
		c := startFaultyChain(t, "volume:any:delay=1s")
		v := c.openBusy(client.Write, depth, c.target, func() {})
		c.target.Signal(syscall.SIGTERM)
		ends(t, v, "target", c.target)
	})
}

// awaitEnd waits until a volume has ended.
func awaitEnd(t *testing.T, v *client.Volume) {
	t.Helper()
	testkit.Receive(t, "the volume ends", v.Done())
}

func TestADrainIsBoundedAndFailsWhatItLeaves(t *testing.T) {
	t.Parallel()
	const depth = 8
	c := startFaultyChain(t, "volume:any:freeze", "--drain-timeout", "300ms")
	// Reads, because a change does not fail before the target can carry it out no more.
	v := c.openBusy(client.Read, depth, c.relay, func() {})
	c.relay.Signal(syscall.SIGTERM)
	if codes := outcomes(t, v, depth); codes[status.Shutdown] != depth {
		t.Errorf("the requests ended with %v", codes)
	}
	awaitEnd(t, v)
	if err := v.Err(); err == nil ||
		!strings.Contains(err.Error(), "the target has not responded to 8 requests") {
		t.Errorf("the client is told %v", err)
	}
	if code := c.relay.Wait(); code != 0 {
		t.Errorf("the relay exited with %d", code)
	}
}

func TestDrainWaitsForSessionsAndRejectsNewOnes(t *testing.T) {
	t.Parallel()
	c, admin := startAdministeredChain(t)
	run := c.startIO(bench(8)...)
	if p := spawn(t, "zc-relay", "drain", "--admin", admin, "--timeout", "0"); p.Wait() != 1 ||
		!strings.Contains(p.Stderr.String(), "1 session is still open") {
		t.Error("a drain with a session and no time to wait did not fail")
	}
	code, body := get(t, c.relay, "/readyz")
	if code != http.StatusServiceUnavailable || !strings.Contains(body, "drained") {
		t.Errorf("/readyz answers %d, %q", code, body)
	}
	refused := c.initiator("info")
	if code := refused.Wait(); code != 3 ||
		!strings.Contains(refused.Stderr.String(), "being drained") {
		t.Errorf("a client of a relay that is being drained exited with %d", code)
	}
	drain := spawn(t, "zc-relay", "drain", "--admin", admin, "--timeout", "infinite")
	select {
	case <-drain.Ended():
		t.Error("the drain did not wait for the session")
	case <-time.After(500 * time.Millisecond):
	}
	if code, d := administration(t, "zc-relay", "drain", "--admin", admin, "--timeout",
		"0"); code != 1 || d["drain"].(map[string]any)["sessions"] != 1.0 {
		t.Errorf("a drain with a session reports %d, %v", code, d)
	}
	run.Signal(syscall.SIGINT)
	if drain.Wait() != 0 || !strings.Contains(drain.Stdout.String(), "drained: no session is open") {
		t.Errorf("the drain failed: %s", drain.Stdout.String())
	}
	if code := run.Wait(); code != 0 {
		t.Errorf("the session that went on exited with %d", code)
	}
	if code, d := administration(t, "zc-relay", "drain", "--admin", admin,
		"--resume"); code != 0 || d["drain"].(map[string]any)["draining"] != false {
		t.Errorf("resuming reports %d, %v", code, d)
	}
	c.mustRun("info")
}

func TestVolumesComeAndGoWithTheConfiguration(t *testing.T) {
	t.Parallel()
	c := &chain{t: t, dir: t.TempDir(), address: listenAddress(t)}
	file := filepath.Join(c.dir, "target.yaml")
	isStrict := false
	configure := func(volumes ...string) {
		text := fmt.Sprintf("startup: {strict: %v}\nvolumes:\n", isStrict)
		for _, v := range volumes {
			text += "  - {" + v + "}\n"
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	backend := func(name, options string) string {
		return fmt.Sprintf("name: %s, backend: %q", name,
			"file:"+filepath.Join(c.dir, name)+",size=16MiB"+options)
	}
	configure(backend("disk", ""), backend("other", ""))
	c.startTarget("--config", file)
	c.volumes = []string{"disk"} // for relays
	c.relay = c.startRelay("comch")
	busy := c.initiator("verify", "--reconnect", "--queues", "1", "--queue-depth", "4", "--runtime",
		patience, "--length", "1MiB", "--output", "json")
	c.relay.AwaitLog("client connected")

	// Another name, another volume, and one that cannot be opened, which changes nothing.
	isStrict = true
	configure(backend("disk", ""), backend("other", ""), backend("added", ""),
		`name: lost, backend: "file:/no/such/directory/file,size=1MiB"`)
	c.target.Signal(syscall.SIGHUP)
	c.target.AwaitLog("the configuration is unchanged: open volume \\\"lost\\\"")
	isStrict = false
	configure(backend("disk", ""), backend("added", ""), `name: read, backend: "volume:disk,readonly"`)
	c.target.Signal(syscall.SIGHUP)
	c.target.AwaitLog(`flushed and closed volume	{"volume": "other"}`)
	c.target.AwaitLog(`offering volume	{"volume": "read"}`)
	for name, want := range map[string]int{"added": 0, "read": 0, "other": 3} {
		c.startRelay("comch-"+name, "--volume", name)
		info := c.initiatorAt("comch-"+name, "info", "--control-timeout", "2s")
		if code := info.Wait(); code != want ||
			code == 0 && strings.Contains(info.Stdout.String(), "read-only") != (name == "read") {
			t.Errorf("info of volume %s exited with %d", name, code)
		}
	}

	// The volume goes while it is in use, and comes back with the same content.
	configure(backend("added", ""))
	c.target.Signal(syscall.SIGHUP)
	c.target.AwaitLog(`flushed and closed volume	{"volume": "disk"}`)
	configure(backend("added", ""), backend("disk", ",exclusive"))
	c.target.Signal(syscall.SIGHUP)
	c.target.AwaitLog(`offering volume	{"volume": "disk"}`)
	testkit.Eventually(t, "verify continues", func() bool {
		info := c.mustRun("info")
		return strings.Contains(info, "one writer at a time") &&
			strings.Contains(info, "exclusively by")
	})
	// A volume gets another name. Its file can be opened under that name only when it is closed.
	configure(fmt.Sprintf("name: renamed, backend: %q",
		"file:"+filepath.Join(c.dir, "added")+",size=16MiB"), backend("disk", ",exclusive"))
	c.target.Signal(syscall.SIGHUP)
	c.target.AwaitLog(`offering volume	{"volume": "renamed"}`)
	interruptVerify(t, busy)
	c.target.Terminate()
}

// TestATargetClosesRemovedVolumesIfItEndsDuringTheDrainOfOthers ends a target that has removed one
// volume, and still waits for a request to another.
func TestATargetClosesRemovedVolumesIfItEndsDuringTheDrainOfOthers(t *testing.T) {
	t.Parallel()
	const stuck = "volume:write:nth=1:freeze"
	c := &chain{t: t, dir: t.TempDir(), faults: []string{stuck}, address: listenAddress(t)}
	file := filepath.Join(c.dir, "target.yaml")
	volume := func(name string) string {
		return fmt.Sprintf("  - {name: %s, backend: %q}\n", name,
			"file:"+filepath.Join(c.dir, name)+",size=16MiB")
	}
	writeFile(t, file, []byte("volumes:\n"+volume("a")+volume("b")+volume("stays")))
	c.startTarget("--config", file, "--metrics-listen", "127.0.0.1:0")
	c.volumes = []string{"b"} // for the relay
	c.relay = c.startRelay("comch")
	c.initiator("verify", "--queues", "1", "--runtime", patience, "--length", "1MiB")
	testkit.Eventually(t, "a write is stuck", func() bool { return c.faultMatches(c.target)[stuck] > 0 })

	writeFile(t, file, []byte("volumes:\n"+volume("stays")))
	c.target.Signal(syscall.SIGHUP)
	c.target.AwaitLog(`removed volume	{"volume": "a"}`)
	c.target.Signal(syscall.SIGTERM)
	c.target.AwaitLog("volume cannot be removed")
	c.target.Signal(syscall.SIGUSR2) // the write goes on
	for _, name := range []string{"a", "b", "stays"} {
		c.target.AwaitLog(`flushed and closed volume	{"volume": "` + name + `"}`)
	}
	if code := c.target.Wait(); code != 0 {
		t.Errorf("the target exited with %d: %s", code, c.target.Stderr.String())
	}
}
