// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// A host's functions appear after its DPU has started. The relay serves those that are there, and
// takes up the others without a hand.
func TestRepresentorsAppearOneByOne(t *testing.T) {
	t.Parallel()
	c := &chain{t: t, dir: t.TempDir(), volumes: []string{"disk=memory:16MiB"},
		address: listenAddress(t)}
	c.startTarget()
	comch := filepath.Join(c.dir, "comch")
	if err := os.Mkdir(comch, 0o700); err != nil {
		t.Fatal(err)
	}
	declare := func(devices string) {
		writeFile(t, filepath.Join(comch, "devices.new"), []byte(devices))
		if err := os.Rename(filepath.Join(comch, "devices.new"),
			filepath.Join(comch, "devices")); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(c.dir, "relay.yaml")
	admin := "unix:" + filepath.Join(c.dir, "relay.sock")
	configure := func(representors ...string) {
		text := fmt.Sprintf("comch: {directory: %q}\n"+
			"operations: {listen: '127.0.0.1:0', admin: %q}\nchannels:\n", comch, admin)
		for _, r := range representors {
			text += fmt.Sprintf("- {name: c, representor: %q, target: %q, volume: disk}\n", r, c.address)
		}
		writeFile(t, file, []byte(text))
	}
	declare("host 00:1f.0\n") // the DPU's device is not there yet
	configure("b1:00.0", "b1:00.1")
	c.relay = spawn(t, "zc-relay", "run", "--config", file)
	expect := func(code int, contains string) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprintf("/readyz returns %d with %q", code, contains), func() bool {
			got, body := get(t, c.relay, "/readyz")
			return got == code && strings.Contains(body, contains) &&
				(contains != "") == (body != "ready\n")
		})
	}
	info := func(device string) {
		t.Helper()
		c.mustRun("info", "--device", device, "--command-channel-name", "c")
	}
	expect(http.StatusServiceUnavailable, "serving 0 of 2 channels")
	declare("dpu 03:00.0 representors=b1:00.0\nhost b1:00.0\nhost b1:00.1\nhost b1:00.2\n")
	expect(http.StatusOK, `serving 1 of 2 channels: channel 03:00.0/b1:00.1/c: clients cannot connect`)
	info("b1:00.0")
	if code, stdout, stderr := call(t, "zc-relay", "status", "--admin", admin); code != 0 ||
		!strings.Contains(stdout, "channels: 1 of 2 ready") ||
		!strings.Contains(stdout, `device 03:00.0 has no representor "b1:00.1" [NOT_FOUND]`) {
		t.Errorf("status exited with %d: %s%s", code, stdout, stderr)
	}

	configure("b1:00.0", "b1:00.1", "b1:00.2")
	if code, stdout, stderr := call(t, "zc-relay", "reload", "--admin", admin); code != 0 {
		t.Errorf("the reload failed with %d: %s%s", code, stdout, stderr)
	}
	expect(http.StatusOK, "serving 1 of 3 channels")
	declare("dpu 03:00.0 representors=b1:00.0,b1:00.1,b1:00.2\n" +
		"host b1:00.0\nhost b1:00.1\nhost b1:00.2\n")
	expect(http.StatusOK, "")
	info("b1:00.1")
	info("b1:00.2")

	configure("b1:00.0", strings.Repeat("x", 200))
	if code, _, stderr := call(t, "zc-relay", "reload", "--admin", admin); code == 0 ||
		!strings.Contains(stderr, "must be 1 to 120") {
		t.Errorf("a reload with an impossible representor exited with %d: %s", code, stderr)
	}
	c.relay.Terminate()
	if code := spawn(t, "zc-relay", "run", "--config", file).Wait(); code == 0 {
		t.Error("a relay with an impossible representor starts")
	}
}

// A name that nobody knows concerns its channel alone, at a start and at a reload.
func TestANameThatIsUnknownKeepsOnlyItsChannelDown(t *testing.T) {
	t.Parallel()
	c := &chain{t: t, dir: t.TempDir(), volumes: []string{"disk=memory:16MiB"},
		address: listenAddress(t)}
	c.startTarget()
	file := filepath.Join(c.dir, "relay.yaml")
	admin := "unix:" + filepath.Join(c.dir, "relay.sock")
	configure := func(level, first, second, user string) {
		writeFile(t, file, fmt.Appendf(nil, `log: {level: %s}
comch: {directory: %q}
operations: {listen: "127.0.0.1:0", admin: %q}
channels:
- {name: first, target: %q, volume: disk}
- {name: second, target: %q, volume: disk}
- {name: third, target: %q, volume: disk, access: {users: [%q]}}
`, level, filepath.Join(c.dir, "comch"), admin, first, second, c.address, user))
	}
	expect := func(body string) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprintf("/readyz says %q", body), func() bool {
			code, got := get(t, c.relay, "/readyz")
			return code == http.StatusOK && strings.Contains(got, body)
		})
	}
	configure("info", c.address.String(), "storage.invalid:7470", "no-such-user")
	c.relay = spawn(t, "zc-relay", "run", "--config", file)
	expect("serving 1 of 3 channels")
	c.relay.AwaitLog(`host \"storage.invalid\" has no address at present`)
	c.relay.AwaitLog(`user \"no-such-user\" does not exist`)
	c.mustRun("info", "--command-channel-name", "first")

	configure("info", c.address.String(), c.address.String(), "0")
	if code, stdout, stderr := call(t, "zc-relay", "reload", "--admin", admin); code != 0 {
		t.Errorf("the reload failed with %d: %s%s", code, stdout, stderr)
	}
	expect("ready")
	c.mustRun("info", "--command-channel-name", "second")
	c.mustRun("info", "--command-channel-name", "third")

	configure("debug", "storage.invalid:7470", c.address.String(), "0")
	if code, _, stderr := call(t, "zc-relay", "reload", "--admin", admin); code == 0 ||
		!strings.Contains(stderr, "storage.invalid") {
		t.Errorf("a reload to an unknown name exited with %d: %s", code, stderr)
	}
	c.relay.AwaitLog(`log.level: \"info\" is now \"debug\"`)
	if c.relay.HasLogged("\tchanged\t{\"key\": \"channels[03:00.0/b1:00.0/first].target") {
		t.Error("a change that has failed is said to have happened")
	}
	c.mustRun("info", "--command-channel-name", "first")
	c.relay.Terminate()
}

// Two relays for the same function: the second one takes over when the first one ends.
func TestARelayWaitsForTheChannelOfAnother(t *testing.T) {
	t.Parallel()
	c := startChain(t, "disk=memory:16MiB")
	second := spawn(t, "zc-relay", c.relay.Cmd.Args[1:]...)
	second.AwaitLog("clients cannot connect: the relay tries again")
	if !second.HasLogged(`server \"storage_zero_copy_comch\" is already running`) ||
		!second.HasLogged("ALREADY_EXIST") {
		t.Error("the second relay does not say that another one serves the channel")
	}
	c.mustRun("info")
	c.relay.Signal(syscall.SIGTERM)
	c.relay.Wait()
	second.AwaitLog("listening for clients")
	c.mustRun("info")
	second.Terminate()
}

// A volume that cannot be opened keeps no other from being served, and is served without a hand
// when it can be.
func TestAVolumeThatCannotBeOpenedComesLater(t *testing.T) {
	t.Parallel()
	c := &chain{t: t, dir: t.TempDir(), address: listenAddress(t)}
	admin := "unix:" + filepath.Join(c.dir, "target.sock")
	late, later := filepath.Join(c.dir, "late.img"), filepath.Join(c.dir, "later.img")
	file := filepath.Join(c.dir, "target.yaml")
	configure := func(strict bool, volumes ...string) {
		text := fmt.Sprintf("startup: {strict: %v}\nvolumes:\n- {name: disk, backend: 'memory:16MiB'}\n",
			strict)
		for _, v := range volumes {
			text += fmt.Sprintf("- {name: %s, backend: 'file:%s'}\n",
				strings.TrimSuffix(filepath.Base(v), ".img"), v)
		}
		writeFile(t, file, []byte(text))
	}
	create := func(path string) {
		t.Helper()
		if err := errors.Join(os.WriteFile(path+".new", make([]byte, 1<<20), 0o600),
			os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
	}
	configure(false, late)
	c.startTarget("--config", file, "--admin-listen", admin, "--metrics-listen", "127.0.0.1:0")
	expect := func(contains string) {
		t.Helper()
		testkit.Eventually(t, "/readyz has "+contains, func() bool {
			code, body := get(t, c.target, "/readyz")
			return code == http.StatusOK && strings.Contains(body, contains) &&
				(contains != "") == (body != "ready\n")
		})
	}
	expect(`serving 1 of 2 volumes: volume "late" is failed`)
	if v := volumeList(t, admin)["late"]; v.State != string(volume.Failed) ||
		!strings.Contains(v.Reason, "does not exist") {
		t.Errorf("the volume is %+v", v)
	}
	if _, stdout, _ := call(t, "target", "status", "--admin", admin); !strings.Contains(stdout,
		" follows in ") {
		t.Errorf("the status does not say when the next attempt follows:\n%s", stdout)
	}
	c.awaitMetrics(c.target, `zc_target_volume_state{state="failed",volume="late"} 1`,
		`zc_target_volume_state{state="serving",volume="disk"} 1`)
	c.volumes = []string{"disk"} // for the relay
	c.relay = c.startRelay("comch")
	c.mustRun("info")
	c.volumes = []string{"late"}
	waiting := c.startRelay("late")
	waiting.AwaitLog("does not exist")
	if code := c.initiatorAt("late", "info", "--control-timeout", "100ms").Wait(); code != 3 {
		t.Errorf("info of the volume that cannot be opened exited with %d", code)
	}
	create(late)
	waiting.AwaitLog("target is ready")
	if p := c.initiatorAt("late", "info"); p.Wait() != 0 {
		t.Error("the volume is not served when it can be opened")
	}

	// The same at a reload, unless the target is strict.
	configure(true, late, later)
	if code, _, stderr := call(t, "target", "reload", "--admin", admin); code == 0 ||
		!strings.Contains(stderr, "does not exist") {
		t.Errorf("a strict reload exited with %d: %s", code, stderr)
	}
	if v := volumeList(t, admin); len(v) != 2 {
		t.Errorf("after a strict reload: %+v", v)
	}
	configure(false, late, later)
	if code, _, stderr := call(t, "target", "reload", "--admin", admin); code != 0 {
		t.Errorf("the reload exited with %d: %s", code, stderr)
	}
	expect(`serving 2 of 3 volumes: volume "later" is failed`)
	create(later)
	expect("")
	c.target.Terminate()
	if !c.target.HasLogged(`flushed and closed volume	{"volume": "later"`) {
		t.Error("the volume that was opened late is not flushed")
	}
}

// What proves that a killed target has lost nothing is kept until the volume can be opened again.
func TestTheWitnessOfAVolumeWaitsUntilItCanBeOpened(t *testing.T) {
	t.Parallel()
	m := startServiceManager(t)
	file := filepath.Join(t.TempDir(), "disk.img")
	writeFile(t, file, make([]byte, 1<<20))
	c := &chain{t: t, dir: t.TempDir(), volumes: []string{"disk=file:" + file, "ram=memory:1MiB"},
		manager: m, environ: m.environ("target"), address: listenAddress(t)}
	witnesses := func() string {
		files, names := m.kept(t)
		for _, f := range files {
			_ = f.Close()
		}
		return names
	}
	c.startTarget()
	testkit.Eventually(t, "the manager keeps a witness", func() bool { return witnesses() != "" })
	witness := witnesses()
	c.target.Kill()
	locked, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer locked.Close()
	if err := syscall.Flock(int(locked.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	c.startTarget()
	if !c.target.HasLogged("volume cannot be opened") || witnesses() != witness {
		t.Errorf("of the witness %q, the manager keeps %q", witness, witnesses())
	}
	_ = locked.Close()
	c.target.AwaitLog(`serving volume	{"volume": "disk"`)
	if witnesses() == "" {
		t.Error("the volume has no witness any more")
	}
	c.target.Terminate()
}

// Of two targets for one file, the second one stands by, and takes over when the first one is gone.
// That one stands by when it comes back.
func TestTargetsOfOneFileStandBy(t *testing.T) {
	t.Parallel()
	first := &chain{t: t, dir: t.TempDir(), address: listenAddress(t)}
	first.volumes = []string{"disk=file:" + filepath.Join(first.dir, "disk.img") +
		",size=16MiB,shared=fenced-by-operator"}
	second := &chain{t: t, dir: t.TempDir(), volumes: first.volumes, address: listenAddress(t)}
	admins := map[*chain]string{}
	for _, c := range []*chain{first, second} {
		admins[c] = "unix:" + filepath.Join(c.dir, "target.sock")
		c.startTarget("--admin-listen", admins[c])
	}
	expect := func(c *chain, want volume.State) {
		t.Helper()
		testkit.Eventually(t, "the volume is "+string(want), func() bool {
			return volumeList(t, admins[c])["disk"].State == string(want)
		})
	}
	expect(first, volume.Serving)
	expect(second, volume.StandBy)
	if v := volumeList(t, admins[second])["disk"]; !strings.Contains(v.Reason, "is locked") {
		t.Errorf("the stand-by says %q", v.Reason)
	}
	both := fmt.Sprintf("%v,%v", first.address, second.address)
	admin := "unix:" + filepath.Join(first.dir, "relay.sock")
	first.relay = spawn(t, "zc-relay", "run", "--storage-servers", both, "--volume", "disk",
		"--emulated-dir", filepath.Join(first.dir, "comch"), "--admin-listen", admin,
		"--metrics-listen", "127.0.0.1:0")
	state := func(c *chain, want string) string {
		return fmt.Sprintf(`state="%s",target="%v"} 1`, want, c.address)
	}
	first.awaitMetrics(first.relay, state(first, "ready"), state(second, "stand-by"))
	client := first.startIO(append(bench(4), "--reconnect", "--reconnect-timeout", patience)...)

	first.target.Kill()
	expect(second, volume.Serving)
	first.awaitMetrics(first.relay, state(second, "ready"))
	first.startTarget("--admin-listen", admins[first])
	expect(first, volume.StandBy)
	first.awaitMetrics(first.relay, state(first, "stand-by"))
	second.target.Terminate()
	expect(first, volume.Serving)
	first.awaitMetrics(first.relay, state(first, "ready"))
	testkit.Eventually(t, "the client is back", func() bool {
		return volumeList(t, admins[first])["disk"].Sessions > 0
	})
	client.Signal(syscall.SIGINT)
	if code := client.Wait(); code != 0 {
		t.Errorf("the client exited with %d: %s", code, tail(client.Stderr.String()))
	}
}
