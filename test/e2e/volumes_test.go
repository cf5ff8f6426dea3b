// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/zc-relay/zc-relay/internal/schematest"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/admin"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// volumeList returns the volumes of a target by name, from a document that is valid.
func volumeList(t *testing.T, address string) map[string]admin.Volume {
	t.Helper()
	_, stdout, stderr := call(t, "target", "volume", "list", "--admin", address, "-o", "json")
	var list admin.VolumeList
	if err := json.Unmarshal([]byte(stdout), &list); err != nil {
		t.Fatalf("%v: %s%s", err, stdout, stderr)
	}
	schema := schematest.Read(t, "../../docs/schemas/volumes.schema.json")
	if err := schema.Check(schematest.Document(t, list)); err != nil {
		t.Error(err)
	}
	volumes := make(map[string]admin.Volume)
	for _, v := range list.Volumes {
		volumes[v.Name] = v
	}
	return volumes
}

// administrator runs commands of the target's administrator.
type administrator struct {
	t       *testing.T
	address string
}

// expect runs "target volume" and checks its exit code, and what its output contains.
func (a administrator) expect(code int, contains string, args ...string) {
	a.t.Helper()
	got, stdout, stderr := call(a.t, "target", append(append([]string{"volume"}, args...),
		"--admin", a.address, "--timeout", "2m")...)
	if got != code || !strings.Contains(stdout+stderr, contains) {
		a.t.Errorf("volume %q: exit code %d, want %d with %q: %s%s", args, got, code, contains,
			stdout, stderr)
	}
}

func TestVolumesComeAndGoByCommand(t *testing.T) {
	t.Parallel()
	c := &chain{t: t, dir: t.TempDir(), address: listenAddress(t)}
	address := "unix:" + filepath.Join(c.dir, "target.sock")
	file := filepath.Join(c.dir, "target.yaml")
	configure := func(volumes ...string) {
		writeFile(t, file, []byte("volumes:\n"+strings.Join(volumes, "")))
	}
	const disk = "  - {name: disk, backend: \"memory:64MiB\"}\n"
	configure(disk)
	c.startTarget("--admin-listen", address, "--config", file, "--volume-directory", c.dir)
	c.volumes = []string{"disk"} // for the relay
	c.relay = c.startRelay("comch")
	a := administrator{t, address}
	content := filepath.Join(c.dir, "content")
	extra := "extra=file:" + content + ",size=1MiB"

	client := c.initiator(bench(8)...) // of another volume: it must not notice anything
	testkit.Eventually(t, "the volume is open",
		func() bool { return volumeList(t, address)["disk"].Sessions > 0 })
	a.expect(0, "serving volume extra, 1MiB", "add", extra, "--block-size", "512")
	a.expect(1, "already serves", "add", extra)
	a.expect(2, "begin with a kind", "add", "wrong=nothing:7")
	a.expect(2, "no TLS", "add", "wrong=memory:1MiB", "--reader", "relay.example")
	a.expect(2, "without a slash", "add", "a/b=memory:1MiB")
	a.expect(0, "serving volume other", "add", "other=volume:extra,readonly")
	volumes := volumeList(t, address)
	if v := volumes["extra"]; v.Kind != "file" || v.Size != 1<<20 || v.BlockSize != 512 ||
		v.ReadOnly || v.Origin != admin.OriginAdministrator {
		t.Errorf("extra is %+v", v)
	}
	if v := volumes["other"]; v.Kind != "volume" || !v.ReadOnly || v.UUID != volumes["extra"].UUID {
		t.Errorf("other is %+v", v)
	}
	if v := volumes["disk"]; v.Origin != admin.OriginConfiguration {
		t.Errorf("disk is %+v", v)
	}
	a.expect(1, "has other names", "remove", "extra")
	a.expect(0, "volume extra has 2MiB", "resize", "extra", "2MiB")
	a.expect(2, "add --shrink if you mean it", "resize", "extra", "1MiB")
	a.expect(0, "volume extra has 512KiB", "resize", "extra", "512KiB", "--shrink")
	a.expect(0, "volume other has 1MiB", "resize", "other", "1024KiB")
	a.expect(2, "keeps its size", "resize", "disk", "128MiB")
	a.expect(2, `"volume list" lists those that there are`, "resize", "none", "1MiB")
	a.expect(2, "at least one block", "resize", "extra", "0")
	if err := os.Truncate(content, 1<<20+512); err != nil {
		t.Fatal(err)
	}
	a.expect(0, "volume extra has 1049088", "resize", "extra")
	a.expect(0, "volume extra has 1MiB", "resize", "extra", "1MiB", "--shrink")

	// A reload leaves what was added alone, and adopts what the file has as well.
	reload := func() {
		t.Helper()
		if code, _, errs := call(t, "target", "reload", "--admin", address); code != 0 {
			t.Fatalf("reload: %d %s", code, errs)
		}
	}
	reload()
	if v := volumeList(t, address); v["extra"].Origin != admin.OriginAdministrator || len(v) != 3 {
		t.Errorf("after a reload: %+v", v)
	}
	const configured = "  - {name: extra, block_size: 512, backend: \"file:CONTENT,size=1MiB\"}\n"
	configure(disk, strings.ReplaceAll(configured, "CONTENT", content))
	reload()
	if v := volumeList(t, address); v["extra"].Origin != admin.OriginConfiguration || len(v) != 3 {
		t.Errorf("after a reload of a file that has the volume: %+v", v)
	}
	configure(disk, strings.ReplaceAll(strings.ReplaceAll(configured, "CONTENT", content), "=1MiB",
		"=3MiB"))
	reload()
	if v := volumeList(t, address); v["extra"].Size != 3<<20 || len(v) != 3 ||
		strings.Contains(c.target.Stderr.String(), `removed volume	{"volume": "extra"`) {
		t.Errorf("after a reload with another size: %+v", v)
	}
	a.expect(0, "volume other is removed", "remove", "other")
	a.expect(0, "volume extra is removed", "remove", "extra")
	a.expect(2, "serves no volume", "remove", "extra")
	a.expect(2, `"operation": "remove_volume"`, "remove", "extra", "-o", "json")
	reload()
	if v := volumeList(t, address); v["extra"].UUID == "" {
		t.Errorf("a reload does not bring back a volume of the file: %+v", v)
	}

	// A volume that goes takes names that were added to it along.
	a.expect(0, "serving volume other", "add", "other=volume:extra")
	configure(disk)
	reload()
	testkit.Eventually(t, "the file's volume and its other name are gone",
		func() bool { return len(volumeList(t, address)) == 1 })
	if err := os.Truncate(content, 0); err != nil {
		t.Fatal(err)
	}
	a.expect(0, "serving volume extra", "add", extra)

	// Removing drains: the client loses its session, and nothing hangs.
	select {
	case <-client.Ended():
		t.Fatalf("the client of the other volume has ended: %s", client.Stderr.String())
	default:
	}
	a.expect(0, "volume disk is removed", "remove", "disk", "--force")
	if client.Wait() == 0 || !strings.Contains(client.Stderr.String(), "being removed") {
		t.Errorf("the client of the removed volume: %s", client.Stderr.String())
	}
	if v := volumeList(t, address); len(v) != 1 || v["extra"].Sessions != 0 ||
		v["extra"].State != string(volume.Serving) {
		t.Errorf("in the end: %+v", v)
	}

	// A volume that has failed says so, and works again when it is reopened.
	if err := os.Truncate(content, 4096); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the truncated volume has failed", func() bool {
		v := volumeList(t, address)["extra"]
		return v.State == string(volume.Failed) && strings.Contains(v.Reason, "shorter")
	})
	if _, stdout, _ := call(t, "target", "status", "--admin", address); !strings.Contains(stdout,
		"state failed since ") {
		t.Errorf("the status does not show it: %s", stdout)
	}
	a.expect(1, "volume extra is removed, but closing it has failed", "remove", "extra")
	if err := os.Truncate(content, 1<<20); err != nil {
		t.Fatal(err)
	}
	a.expect(0, "serving volume extra", "add", extra)
	if v := volumeList(t, address)["extra"]; v.State != string(volume.Serving) || v.Reason != "" {
		t.Errorf("reopened: %+v", v)
	}
}

// Clients have written, and not flushed. Removing a volume and adding it again, and stopping a
// target, flush for them. Only a target that is killed may have lost something.
func TestACleanEndIsNoLoss(t *testing.T) {
	c := &chain{t: t, dir: t.TempDir(), address: listenAddress(t)}
	address := "unix:" + filepath.Join(c.dir, "target.sock")
	c.volumes = []string{"disk=file:" + filepath.Join(c.dir, "disk.img") + ",size=1MiB"}
	start := func() {
		c.startTarget("--admin-listen", address, "--state-directory", filepath.Join(c.dir, "state"))
	}
	start()
	c.relay = c.startRelay("comch")
	config := c.clientConfig(1)
	config.SyncDepth = 0
	config.Reconnect = &retry.Policy{Total: retry.Within(testkit.Patience)}
	v, err := client.Open(testkit.Context(t), config)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Abort()
	a := administrator{t, address}
	readd := func() {
		a.expect(0, "", "remove", "disk")
		a.expect(0, "serving volume disk", "add", strings.TrimSuffix(c.volumes[0], ",size=1MiB"))
	}
	restart := func() {
		c.target.Terminate()
		start()
	}
	for round, end := range []func(){readd, restart, readd, readd, restart} {
		if _, err := v.WriteAt(make([]byte, 4096), 0); err != nil {
			t.Fatal(err)
		}
		end()
		if err := v.Flush(); err != nil {
			t.Errorf("end %d: the flush returned %v", round, err)
		}
	}
	if _, err := v.WriteAt(make([]byte, 4096), 0); err != nil {
		t.Fatal(err)
	}
	c.target.Signal(syscall.SIGKILL)
	c.target.Wait()
	start()
	if err := v.Flush(); !errors.Is(err, client.ErrWritesLost) {
		t.Errorf("after a target was killed, the flush returned %v", err)
	}
}

// What is put into a file that is gone would be lost, although every system call succeeds.
func TestAVolumeWhoseFileIsGoneFails(t *testing.T) {
	for name, lose := range map[string]func(file string) error{
		"removed": os.Remove,
		"renamed": func(file string) error { return os.Rename(file, file+".old") },
	} {
		t.Run(name, func(t *testing.T) {
			c := &chain{t: t, dir: t.TempDir(), address: listenAddress(t)}
			address := "unix:" + filepath.Join(c.dir, "target.sock")
			file := filepath.Join(c.dir, "disk.img")
			c.volumes = []string{"disk=file:" + file + ",size=1MiB"}
			c.startTarget("--admin-listen", address, "--metrics-listen", "127.0.0.1:0")
			c.relay = c.startRelay("comch", "--metrics-listen", "127.0.0.1:0",
				"--session-wait", "0s")
			c.awaitReady(c.relay)
			content := filepath.Join(c.dir, "content")
			writeFile(t, content, make([]byte, 1<<20))
			c.mustRun("put", content)
			if err := lose(file); err != nil {
				t.Fatal(err)
			}
			if run := c.initiator("put", content); run.Wait() == 0 {
				t.Errorf("put succeeds: %s", run.Stdout.String())
			}
			testkit.Eventually(t, "the volume has failed", func() bool {
				v := volumeList(t, address)["disk"]
				return v.State == string(volume.Failed) && strings.Contains(v.Reason, name)
			})
			for who, p := range map[string]*testkit.Process{"target": c.target, "relay": c.relay} {
				testkit.Eventually(t, "the "+who+" is not ready", func() bool {
					code, _ := get(t, p, "/readyz")
					return code == http.StatusServiceUnavailable
				})
			}
			testkit.Eventually(t, "the relay's status says why", func() bool {
				_, text := get(t, c.relay, "/status")
				return strings.Contains(text, name)
			})
			if !strings.Contains(c.scrape(c.target),
				`zc_target_volume_state{state="failed",volume="disk"} 1`) {
				t.Error("the metrics do not show it")
			}
			testkit.Eventually(t, "info says why", func() bool {
				info := c.initiator("info")
				return info.Wait() != 0 && strings.Contains(info.Stderr.String(), name)
			})
			c.target.Signal(syscall.SIGTERM)
			if code := c.target.Wait(); code == 0 ||
				strings.Contains(c.target.Stderr.String(), "flushed and closed") {
				t.Errorf("the target ends with %d: %s", code, c.target.Stderr.String())
			}
		})
	}
}
