// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/internal/schematest"
	"github.com/zc-relay/zc-relay/internal/testkit"
)

// holderOf returns the ID of whoever has the chain's volume, as a host's relay tells it.
func (c *chain) holderOf(directory string) string {
	c.t.Helper()
	p := c.initiatorAt(directory, "info", "-o", "json")
	if code := p.Wait(); code != 0 {
		c.t.Fatalf("info exited with %d", code)
	}
	var document map[string]any
	if err := json.Unmarshal([]byte(p.Stdout.String()), &document); err != nil {
		c.t.Fatal(err)
	}
	if err := schematest.Read(c.t, "../../docs/schemas/info.schema.json").Check(document); err != nil {
		c.t.Error(err)
	}
	holder, _ := document["use"].(map[string]any)["holder_id"].(string)
	return holder
}

// expectCode waits until a program has ended.
func expectCode(t *testing.T, p *testkit.Process, code int, log string) {
	t.Helper()
	if got := p.Wait(); got != code || !p.HasLogged(log) {
		t.Errorf("exit code %d, want %d with %q: %s", got, code, log, tail(p.Stderr.String()))
	}
}

func TestAVolumeMovesToAnotherHost(t *testing.T) {
	t.Parallel()
	c := &chain{t: t, dir: t.TempDir(), address: listenAddress(t)}
	c.volumes = []string{"disk=file:" + filepath.Join(c.dir, "disk") + ",size=16MiB,exclusive"}
	address := "unix:" + filepath.Join(c.dir, "target.sock")
	c.startTarget("--admin-listen", address, "--metrics-listen", "127.0.0.1:0")
	c.startRelay("here")
	c.startRelay("there")
	nbd := func(host string, flags ...string) *testkit.Process {
		return c.initiatorAt(host, append([]string{"nbd", "--socket",
			filepath.Join(c.dir, host+".nbd")}, flags...)...)
	}
	here := nbd("here")
	here.AwaitLog("serving NBD clients")
	holder := c.holderOf("there")
	if holder == "" || !strings.Contains(here.Stderr.String(), holder) {
		t.Fatalf("the holder is %q, and does not say so itself", holder)
	}

	expectCode(t, nbd("there"), 2, "(holder "+holder+")")
	expectCode(t, nbd("there", "--preempt", "holder"), 2, `holder "holder" is not an ID`)
	expectCode(t, nbd("there", "--preempt", "0123456789abcdef"), 2, "(holder "+holder+")")
	there := nbd("there", "--preempt", holder)
	there.AwaitLog("serving NBD clients")
	expectCode(t, here, 4, "its volume has been taken away")
	if volumes := volumeList(t, address); volumes["disk"].HolderID == holder ||
		volumes["disk"].HolderID != c.holderOf("here") {
		t.Errorf("the volume after the move: %+v", volumes["disk"])
	}
	expectCode(t, nbd("here", "--preempt", holder), 2, "is not held by holder "+holder+" any more")

	// A command that opens the volume twice, and reopens it after a loss, but not now.
	flags := append(bench(8), "--preempt", c.holderOf("here"), "--reconnect")
	command := c.initiatorAt("here", flags...)
	expectCode(t, there, 4, "its volume has been taken away")
	testkit.Eventually(t, "the command has begun",
		func() bool { return sumMetric(c.scrape(c.target), "zc_target_io_total") > 100 })
	sessions := sessionList(t, "target", address)
	holder = volumeList(t, address)["disk"].HolderID
	if s := sessions[len(sessions)-1]; s.HolderID != holder || !strings.HasPrefix(s.Client,
		"initiator on ") {
		t.Errorf("the last session of %+v is not that of holder %s", sessions, holder)
	}
	preempt := []string{"volume", "preempt", "disk", holder, "--admin", address}
	code, document := administration(t, "target", "volume", "preempt", "disk", "0123456789abcdef",
		"--admin", address)
	if failure, _ := document["error"].(map[string]any); code != 2 || failure["code"] != "IN_USE" {
		t.Errorf("another holder is preempted with %d, %v", code, document)
	}
	if code, document := administration(t, "target", preempt...); code != 0 {
		t.Errorf("the holder is preempted with %d, %v", code, document)
	}
	expectCode(t, command, 4, "preempted by an administrator")
	if code, document := administration(t, "target", preempt...); code != 0 {
		t.Errorf("the holder is preempted again with %d, %v", code, document)
	}
	if v := volumeList(t, address)["disk"]; v.Sessions != 0 || v.Holder != "" || v.HolderID != "" {
		t.Errorf("the volume after the last client: %+v", v)
	}
}

// writeUntilItFails writes through a gateway, and prints the error of the first write that fails.
// Then it waits for the gateway to end it, which may have happened already.
const writeUntilItFails = `PATH=/usr/bin:$PATH exec nbdsh -u "$uri" -c '
import signal, time
ended = []
signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
print("writing", flush=True)
while True:
    try:
        h.pwrite(b"x" * 4096, 4096)
    except nbd.Error as failure:
        print(failure.errno, flush=True)
        break
while not ended:
    time.sleep(0.01)
'`

func TestADiskThatIsTakenAwayFailsItsRequests(t *testing.T) {
	t.Parallel()
	testkit.RequireTools(t, "nbdsh")
	c := startChain(t, "disk=memory:16MiB,exclusive")
	disk := c.gateway(writeUntilItFails)
	testkit.Eventually(t, "the client writes", func() bool { return disk.Stdout.Len() > 0 })
	command := c.initiator("put", "--preempt", c.holderOf("comch"), "--allow-empty",
		"/dev/null")
	if code := command.Wait(); code != 0 {
		t.Errorf("the command that takes the volume exits with %d", code)
	}
	expectCode(t, disk, 4, "its volume has been taken away")
	// A write that the gateway has not received when it disconnects the client ends otherwise.
	if !regexp.MustCompile("ESHUTDOWN|ENOTCONN").MatchString(disk.Stdout.String()) {
		t.Errorf("the client of the disk says %s, want ESHUTDOWN", disk.Stdout)
	}
}
