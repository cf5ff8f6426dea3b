// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAVolumeThatTheTargetDoesNotHave is a mistake in the relay's configuration. Its operator
// learns of the volumes that there are, and the client only that the mistake is not its own.
func TestAVolumeThatTheTargetDoesNotHave(t *testing.T) {
	t.Parallel()
	c := &chain{t: t, dir: t.TempDir(), volumes: []string{"secret=memory:16MiB"},
		address: listenAddress(t)}
	c.startTarget()
	c.volumes = []string{"other=memory:16MiB"}
	c.relay = c.startRelay("comch", "--session-wait", "0s")
	c.relay.AwaitLog(`the target has no volume \"other\": it has [\"secret\"]`)
	client := c.initiator("info")
	if code := client.Wait(); code != 3 {
		t.Errorf("the initiator exited with %d", code)
	}
	if text := client.Stderr.String(); !strings.Contains(text, `has no volume "other"`) ||
		strings.Contains(text, "secret") || strings.Contains(text, "is down") {
		t.Errorf("the client was told: %s", text)
	}
}

func TestWhatADaemonCannotDoIsExplained(t *testing.T) {
	t.Parallel()
	c := &chain{t: t, dir: t.TempDir(), volumes: []string{"disk=memory:16MiB"},
		address: listenAddress(t)}
	admin := "unix:" + filepath.Join(c.dir, "admin.sock")
	c.startTarget("--admin-listen", admin)
	drain := spawn(t, "zc-relay", "drain", "--admin", admin)
	if code := drain.Wait(); code == 0 || !strings.Contains(drain.Stderr.String(),
		"has no drain: it is a target, and this takes a relay: give --admin the address of a relay") {
		t.Errorf("drain of a target: %d %s", code, drain.Stderr.String())
	}
	file := filepath.Join(c.dir, "new")
	second := spawn(t, "target", "--listen-address", c.address.Addr().String(), "--listen-port",
		portOf(c.address.String()), "--volume", "disk=file:"+file+",size=1MiB")
	if code := second.Wait(); code != 1 || !strings.Contains(second.Stderr.String(),
		"Another program uses the address") {
		t.Errorf("a second target: %d %s", code, second.Stderr.String())
	}
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a target that cannot listen has created the file of its volume: %v", err)
	}
}

func portOf(address string) string {
	_, port, _ := net.SplitHostPort(address)
	return port
}

func TestWhoeverPreemptsNobodyIsTold(t *testing.T) {
	t.Parallel()
	c := &chain{t: t, dir: t.TempDir(), volumes: []string{"disk=memory:16MiB"},
		address: listenAddress(t)}
	c.startTarget()
	c.startRelay("comch")
	client := c.initiator("verify", "--length", "64KiB", "--overwrite", "--preempt",
		"0123456789abcdef")
	if code := client.Wait(); code != 0 || strings.Count(client.Stderr.String(),
		"nothing was taken from anybody") != 1 {
		t.Errorf("the initiator exited with %d: %s", code, client.Stderr.String())
	}
}

// TestARelayThatIsAimedAtTheWrongPort has taken the one for RDMA, whose target says nothing to what
// it does not understand.
func TestARelayThatIsAimedAtTheWrongPort(t *testing.T) {
	t.Parallel()
	c := &chain{t: t, dir: t.TempDir(), volumes: []string{"disk=memory:16MiB"},
		address: listenAddress(t)}
	c.startTarget("--rdma-provider", "iwarp")
	_, text, _ := strings.Cut(c.target.Stderr.String(), "listening for relays")
	_, text, _ = strings.Cut(text, `"rdma": "`)
	port, _, _ := strings.Cut(text, `"`)
	relay := c.startRelay("comch", "--session-wait", "0s", "--storage-server", port)
	relay.AwaitLog("is that the --listen-port of a target, and not its port for RDMA")
}

// TestDoctorTellsATargetFromAnotherProgram lets it greet both.
func TestDoctorTellsATargetFromAnotherProgram(t *testing.T) {
	t.Parallel()
	c := &chain{t: t, dir: t.TempDir(), volumes: []string{"disk=memory:16MiB"},
		address: listenAddress(t)}
	c.startTarget("--metrics-listen", "127.0.0.1:0")
	for address, want := range map[string]string{
		c.address.String():      "ok    target          " + c.address.String() + " is reached",
		opsAddress(t, c.target): "does not answer as a target",
	} {
		doctor := spawn(t, "zc-relay", "doctor", "--config=", "--storage-server", address,
			"--volume", "disk", "--emulated-dir", filepath.Join(c.dir, "comch"))
		doctor.Wait()
		if !strings.Contains(doctor.Stdout.String(), want) {
			t.Errorf("%s: %q is missing in\n%s", address, want, doctor.Stdout.String())
		}
	}
}
