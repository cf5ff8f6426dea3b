package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
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
			return got == code && strings.Contains(body, contains)
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
	expect(http.StatusOK, "ready\nserving 3 of 3 channels\n")
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

// Two relays for the same function: the second one takes over when the first one ends.
func TestARelayWaitsForTheChannelOfAnother(t *testing.T) {
	t.Parallel()
	c := startChain(t, "disk=memory:16MiB")
	second := spawn(t, "zc-relay", c.relay.Cmd.Args[1:]...)
	second.AwaitLog("clients cannot connect: the relay tries again")
	c.mustRun("info")
	c.relay.Signal(syscall.SIGTERM)
	c.relay.Wait()
	second.AwaitLog("listening for clients")
	c.mustRun("info")
	second.Terminate()
}
