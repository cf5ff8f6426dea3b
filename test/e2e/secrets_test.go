// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
)

// ofNobody runs the test that calls it again as a user without rights, if this process is root's,
// to whom the kernel shows everything. It reports whether the test is to go on in this process.
func ofNobody(t *testing.T) bool {
	t.Helper()
	if os.Geteuid() != 0 {
		return true
	}
	const nobody = 65534
	// Everybody can reach this directory, unlike those of the test.
	directory, err := os.MkdirTemp("", "zc-relay-nobody")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(directory) })
	temporary := filepath.Join(directory, "tmp")
	if err := os.Mkdir(temporary, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(directory, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(temporary, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, from := range map[string]string{"test": self, "target": program(t, "target"),
		"zc-relay": program(t, "zc-relay"), "initiator": program(t, "initiator")} {
		if output, err := exec.Command("cp", "--reflink=auto", from,
			filepath.Join(directory, name)).CombinedOutput(); err != nil {
			t.Fatalf("copy %s: %v: %s", name, err, output)
		}
	}
	again := exec.CommandContext(t.Context(), filepath.Join(directory, "test"),
		"-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=0")
	again.Dir = temporary
	again.Env = append(os.Environ(), "TMPDIR="+temporary, "XDG_RUNTIME_DIR="+temporary,
		testkit.Plain.Variable+"="+directory)
	again.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	output, err := again.CombinedOutput()
	switch {
	case err != nil:
		t.Errorf("as user %d: %v\n%s", nobody, err, output)
	case strings.Contains(string(output), "--- SKIP"):
		t.Skipf("%s", output)
	}
	return false
}

// isHidden reports whether another process of the same user may look into the memory of p, and
// whether a crash leaves none.
func isHidden(t *testing.T, p *testkit.Process) bool {
	t.Helper()
	directory := fmt.Sprintf("/proc/%d/", p.Cmd.Process.Pid)
	_, err := os.ReadFile(directory + "environ")
	if err != nil && !os.IsPermission(err) {
		t.Fatal(err)
	}
	if err == nil {
		return false
	}
	limits := string(readFile(t, directory+"limits"))
	_, core, _ := strings.Cut(limits, "Max core file size")
	if fields := strings.Fields(core); len(fields) == 0 || fields[0] != "0" {
		t.Errorf("%s is hidden, and may leave a core of %q bytes", p.Name, core[:min(len(core), 40)])
	}
	return true
}

// Everything that the programs do with their own files in /proc still works.
func TestProgramsWithKeysHideTheirMemory(t *testing.T) {
	t.Parallel()
	testkit.RequireTools(t, "nbdcopy", "cmp")
	if !ofNobody(t) {
		return
	}
	c := startTLSTarget(t)
	c.relay = c.startRelay("comch", tlsFlagsOf(c.ofRelay)...)
	authority := mutualtlstest.NewAuthority(t)
	own := authority.Write(filepath.Join(c.dir, "gateway"), []string{"127.0.0.1"})
	gatewayTLS := append(tlsFlagsOf(own), "--listen", "127.0.0.1:0")
	// The names of the files are those that libnbd expects.
	directory := filepath.Join(c.dir, "client")
	files := authority.Write(directory, []string{"client.test"})
	for from, to := range map[string]string{files.Certificate: "client-cert.pem",
		files.Key: "client-key.pem", files.CA: "ca-cert.pem"} {
		writeFile(t, filepath.Join(directory, to), readFile(t, from))
	}
	const work = `case $uri in nbds:*) uri="$uri?tls-certificates=client" ;; esac
head -c 1M /dev/urandom >a; nbdcopy a "$uri"; nbdcopy "$uri" b; cmp a b; read -r _ || :`
	serve := func(flags ...string) (p *testkit.Process, end func()) {
		// The gateway's command waits for the end of a pipe, which keeps the gateway.
		reader, writer, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		args := append([]string{program(t, "initiator"), "nbd", "--emulated-dir",
			filepath.Join(c.dir, "comch"), "--run",
			fmt.Sprintf("set -eu; cd '%s'; exec <&3; %s", c.dir, work)}, flags...)
		p = spawnWith(t, inheritance{files: []*os.File{reader}}, "initiator", args...)
		p.AwaitLog("serving NBD clients")
		return p, func() {
			_ = writer.Close()
			if code := p.Wait(); code != 0 {
				t.Errorf("the gateway exited with %d", code)
			}
		}
	}
	gateway, end := serve(gatewayTLS...)
	for _, p := range []*testkit.Process{c.target, c.relay, gateway} {
		if !isHidden(t, p) {
			t.Errorf("%s holds a private key, and other processes can read its memory", p.Name)
		}
	}
	end()
	// A setting, or the lack of secrets, leaves them to debuggers.
	for _, flags := range [][]string{append(gatewayTLS, "--core-dumps"), nil} {
		gateway, end := serve(flags...)
		if isHidden(t, gateway) {
			t.Errorf("a gateway with flags %q hides its memory", flags)
		}
		end()
	}
	for name, hidden := range map[string]bool{"admin-token-file": true, "core-dumps": false} {
		token := filepath.Join(c.dir, "token")
		writeFile(t, token, []byte("a-token-that-is-long-enough-to-be-one\n"))
		if err := os.Chmod(token, 0o600); err != nil {
			t.Fatal(err)
		}
		flags := []string{"--admin-listen", "127.0.0.1:0", "--admin-token-file", token}
		if !hidden {
			flags = append(append(flags, "--core-dumps"), tlsFlagsOf(c.ofRelay)...)
		}
		relay := c.startRelay("comch-"+name, flags...)
		if isHidden(t, relay) != hidden {
			t.Errorf("a relay with flags %q hides its memory: %v", flags, !hidden)
		}
		relay.Terminate()
	}
	c.relay.Terminate()
	c.target.Terminate()
}

// rootsTarget names the variable with the address of a target that root runs.
const rootsTarget = "ZC_RELAY_ROOTS_TARGET"

// TestSharedMemoryIsForProcessesOfOneUser has a target of root and a relay of another user.
func TestSharedMemoryIsForProcessesOfOneUser(t *testing.T) {
	if os.Geteuid() == 0 {
		c := &chain{t: t, dir: t.TempDir(), volumes: []string{"disk=memory:16MiB"},
			address: listenAddress(t)}
		c.startTarget("--rdma-provider", "auto")
		t.Setenv(rootsTarget, c.address.String())
	}
	if !ofNobody(t) {
		return
	}
	address := os.Getenv(rootsTarget)
	if address == "" {
		t.Skip("only root can have programs of two users")
	}
	relay := spawn(t, "zc-relay", "run", "--storage-server", address, "--volume", "disk",
		"--emulated-dir", filepath.Join(t.TempDir(), "comch"), "--rdma-provider", "shm")
	relay.AwaitLog("does not admit this relay")
	relay.AwaitLog("of user 0, and this process is of user")
}
