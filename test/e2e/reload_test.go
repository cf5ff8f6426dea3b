package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// configure writes the configuration of a relay with the given channels of
// the chain's target, and what goes before them.
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

func TestSIGHUPAppliesWhatItCanAndSaysWhatNeedsARestart(t *testing.T) {
	c := &chain{t: t, dir: t.TempDir(), volumes: []string{"disk=memory:64MiB"}, address: listenAddress()}
	c.startTarget()
	file := filepath.Join(c.dir, "relay.yaml")
	c.configure(file, "", "first", "second")
	c.relay = spawn(t, "zc-relay", append([]string{"run", "--config", file}, relayFlags()...)...)
	c.relay.awaitLog("listening for clients")
	live := c.initiator("verify", "--command-channel-name", "first", "--queues", "1", "--queue-depth", "4", "--runtime", "3s")
	c.relay.awaitLog("client connected")

	c.configure(file, "log: {level: debug}\nrdma: {crc: true}\n", "first", "third")
	c.relay.signal(syscall.SIGHUP)
	for _, want := range []string{`rdma.crc: \"false\" is now \"true\"`, "needs a restart", `/third] added`, `/second] removed`, `log.level: \"info\" is now \"debug\"`} {
		c.relay.awaitLog(want)
	}
	c.mustRun("info", "--command-channel-name", "third")
	c.relay.awaitLog("removed channel is released")
	if code := c.initiator("info", "--command-channel-name", "second", "--control-timeout", "200ms").wait(); code != 3 {
		t.Errorf("info on the removed channel ended with %d", code)
	}

	if err := os.WriteFile(file, []byte("log: {levels: info}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.relay.signal(syscall.SIGHUP)
	c.relay.awaitLog("relay.yaml:1: log.levels: unknown key")
	c.mustRun("info", "--command-channel-name", "third")
	if code := live.wait(); code != 0 {
		t.Errorf("the session that was open all the time ended with %d", code)
	}
	c.relay.terminate()
}
