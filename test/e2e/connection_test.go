// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
)

func TestRDMAConnectionsUseTheConfiguredAddresses(t *testing.T) {
	t.Parallel()
	if len(targetFlags())+len(relayFlags()) > 0 {
		t.Skip("no RDMA device has a loopback address: this test needs the embedded provider")
	}
	c := &chain{t: t, dir: t.TempDir(), volumes: []string{"disk=memory:16MiB"},
		address: listenAddress(t)}
	c.startTarget("--rdma-address", "127.0.0.3")
	if address := c.rdmaAddress(); !strings.HasPrefix(address, "127.0.0.3:") {
		t.Errorf("the target takes RDMA connections at %s", address)
	}
	// The target rejects connections from any other address than the announced one.
	c.relay = c.startRelay("comch", "--rdma-address", "127.0.0.2")
	c.mustRun("verify", "--queues", "2", "--passes", "1", "--length", "2MiB")
}

func TestAnRDMAAddressThatCannotBeUsedIsExplained(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ address, says string }{
		{"mlx5_0", `--rdma-address "mlx5_0": must be an IP address`},
		{"0.0.0.0", "not an address that the target can connect to"},
	} {
		relay := spawn(t, "zc-relay", "run", "--storage-server", "127.0.0.1:1", "--volume", "disk",
			"--emulated-dir", t.TempDir(), "--rdma-address", test.address)
		if code := relay.Wait(); code == 0 {
			t.Errorf("--rdma-address %s: the relay ended with success", test.address)
		}
		if !strings.Contains(relay.Stderr.String(), test.says) {
			t.Errorf("--rdma-address %s: the relay says %s", test.address, relay.Stderr.String())
		}
	}
	// TEST-NET-3 (RFC 5737) belongs to nobody, but the next address of this machine might.
	relay := spawn(t, "zc-relay", "run", "--storage-server", "127.0.0.1:1", "--volume", "disk",
		"--emulated-dir", t.TempDir(), "--rdma-address", "203.0.113.77")
	relay.AwaitLog("open RDMA device at 203.0.113.77")
	relay.Terminate()
}

// withoutIPv6 runs a chain whose relay finds two addresses of its target by name, on a machine that
// has one of them.
const withoutIPv6 = `set -eu
ip link set lo up
switch=/proc/sys/net/ipv6/conf/all/disable_ipv6 # absent from a kernel without IPv6
[ ! -e $switch ] || echo 1 >$switch
printf '127.0.0.1 localhost\n::1 localhost\n' >hosts
mount --bind hosts /etc/hosts
trap 'kill $(jobs -p)' EXIT
"$PROGRAMS/target" --listen-address 127.0.0.1 --volume disk=memory:16MiB 2>target.log &
"$PROGRAMS/zc-relay" run --storage-servers localhost:7470 --volume disk --emulated-dir comch \
	--admin-listen "unix:$PWD/admin.sock" 2>relay.log &
await() { for i in $(seq 2400); do if "$@"; then return; fi; sleep 0.1; done; cat *.log; exit 1; }
await grep -q "target is ready" relay.log
"$PROGRAMS/initiator" verify --emulated-dir comch --passes 1 --length 1MiB
no_route() { "$PROGRAMS/zc-relay" status --admin "unix:$PWD/admin.sock" | tee status |
	grep -q '::1.*no route to it (is IPv6 switched off?)'; }
await no_route
cat status
`

func TestAHostNeedsNoIPv6ForATargetAtLocalhost(t *testing.T) {
	t.Parallel()
	if len(targetFlags())+len(relayFlags()) > 0 {
		t.Skip("no RDMA device has a loopback address: this test needs the embedded provider")
	}
	shell := exec.CommandContext(testkit.Context(t), "unshare", "--map-root-user", "--net", "--mount",
		"bash", "-c", withoutIPv6)
	shell.Dir, shell.Env = t.TempDir(), append(os.Environ(), "PROGRAMS="+testkit.Plain.Directory(t))
	shell.WaitDelay = 10 * time.Second
	output, err := shell.CombinedOutput()
	if err != nil || !strings.Contains(string(output), "127.0.0.1:7470, volume disk: ready") {
		t.Errorf("%v:\n%s", err, output)
	}
}

func TestStrayClientsAreDisconnectedAndHarmNobody(t *testing.T) {
	t.Parallel()
	c := &chain{t: t, dir: t.TempDir(), volumes: []string{"disk=memory:64MiB"},
		address: listenAddress(t)}
	c.startTarget("--control-timeout", "5s") // which also bounds a stray
	c.relay = c.startRelay("comch")
	rdma := c.rdmaAddress()
	var strays []net.Conn
	for _, address := range []string{c.address.String(), rdma} {
		for _, garbage := range []string{"", "GET / HTTP/1.1\r\n\r\n",
			strings.Repeat("\xff", 100000), "\x00\x00\x00\x04abcd", "MPA ID Req Frame"} {
			stray, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			defer stray.Close()
			_, _ = io.WriteString(stray, garbage)
			strays = append(strays, stray)
		}
	}
	c.mustRun("verify", "--queues", "2", "--queue-depth", "16", "--passes", "1",
		"--length", "16MiB")
	for i, stray := range strays {
		if err := stray.SetReadDeadline(time.Now().Add(testkit.Patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, stray); os.IsTimeout(err) {
			t.Errorf("stray %d was not disconnected", i)
		}
	}
}

func TestSilentRDMAConnectionsLeaveDescriptorsToOthers(t *testing.T) {
	t.Parallel()
	if len(targetFlags()) > 0 {
		t.Skip("only the embedded provider has a descriptor for each connection request")
	}
	c := &chain{t: t, dir: t.TempDir(), volumes: []string{"disk=memory:16MiB"},
		address: listenAddress(t), openFiles: 150}
	c.startTarget()
	address := c.rdmaAddress()
	ctx, stop := context.WithCancel(context.Background())
	var attacking sync.WaitGroup
	t.Cleanup(attacking.Wait)
	t.Cleanup(stop)
	var silent atomic.Int64
	for range 200 {
		attacking.Go(func() {
			for ctx.Err() == nil {
				conn, err := net.Dial("tcp", address)
				if err != nil {
					continue
				}
				silent.Add(1)
				end := context.AfterFunc(ctx, func() { _ = conn.Close() })
				_, _ = conn.Read(make([]byte, 1)) // until it has to make room
				end()
				_ = conn.Close()
				time.Sleep(100 * time.Millisecond) // the rate of the attack
			}
		})
	}
	testkit.Eventually(t, "the attack has begun", func() bool { return silent.Load() >= 200 })
	c.relay = c.startRelay("comch")
	c.mustRun("verify", "--queues", "2", "--passes", "1", "--length", "1MiB",
		"--control-timeout", patience)
}

func tlsFlagsOf(files mutualtls.Files) []string {
	return []string{"--tls-cert", files.Certificate, "--tls-key", files.Key, "--tls-ca", files.CA}
}

// tlsChain is a target and a relay, each with a certificate.
type tlsChain struct {
	*chain
	authority         *mutualtlstest.Authority
	ofTarget, ofRelay mutualtls.Files
}

// startTLSTarget starts a target with a certificate for its address. The relay is left to the test.
func startTLSTarget(t *testing.T, flags ...string) *tlsChain {
	t.Helper()
	return startTLSTargetIn(t, nil, flags...)
}

// startTLSTargetIn is startTLSTarget with the environment of each program.
func startTLSTargetIn(t *testing.T, environ map[string][]string, flags ...string) *tlsChain {
	t.Helper()
	c := &tlsChain{
		chain: &chain{t: t, dir: t.TempDir(), volumes: []string{"secret-volume=memory:1MiB"},
			environ: environ, address: listenAddress(t)},
		authority: mutualtlstest.NewAuthority(t),
	}
	address := c.address.Addr().String()
	c.ofTarget = c.authority.Write(filepath.Join(c.dir, "target"), []string{address})
	c.ofRelay = c.authority.Write(filepath.Join(c.dir, "relay"), []string{"relay.test"})
	c.startTarget(append(tlsFlagsOf(c.ofTarget), flags...)...)
	return c
}

// mustServe runs IO through a relay.
func (c *tlsChain) mustServe(directory string) {
	c.t.Helper()
	p := c.initiatorAt(directory, "verify", "--queues", "1", "--passes", "1", "--length", "256KiB")
	if code := p.Wait(); code != 0 {
		c.t.Fatalf("verify over TLS exited with %d: %s", code, p.Stderr.String())
	}
}

func TestIORunsWithMutualTLS(t *testing.T) {
	t.Parallel()
	c := startTLSTarget(t, "--tls-allowed-name", "relay.test", "--log-level", "debug")
	c.relay = c.startRelay("comch", tlsFlagsOf(c.ofRelay)...)
	c.mustServe("comch")
	c.target.AwaitLog(`(\"relay.test\")`)
	c.relay.Terminate()
	c.target.Terminate()
}

func TestTLSKeepsTheControlConnectionConfidential(t *testing.T) {
	t.Parallel()
	cases := map[string]bool{"plain text": false, "TLS": true}
	for name, encrypted := range cases {
		t.Run(name, func(t *testing.T) {
			c := startTLSTarget(t)
			flags := tlsFlagsOf(c.ofRelay)
			if !encrypted {
				c.target.Terminate()
				c.startTarget()
				flags = nil
			}
			wire := eavesdrop(t, c.address)
			relay := c.startRelay("comch",
				append(flags, "--storage-server", wire.listener.Addr().String())...)
			c.mustServe("comch")
			relay.Terminate()
			if readable := wire.saw("secret-volume"); readable == encrypted {
				t.Errorf("the name of the volume can be read: %v", readable)
			}
		})
	}
}

func TestRelaysAndTargetsThatDoNotTrustEachOtherSayWhy(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name       string
		allowed    string
		flags      func(*tlsChain) []string
		relaySays  string
		targetSays string
	}{
		{name: "relay of another authority", relaySays: "unknown certificate authority",
			targetSays: "signed by unknown authority",
			flags: func(c *tlsChain) []string {
				files := mutualtlstest.NewAuthority(t).Write(filepath.Join(c.dir, "other"),
					[]string{"relay.test"})
				files.CA = c.ofRelay.CA
				return tlsFlagsOf(files)
			}},
		{name: "target of another authority", relaySays: "certificate signed by unknown authority",
			targetSays: "the peer ended TLS",
			flags: func(c *tlsChain) []string {
				files := c.ofRelay
				other := mutualtlstest.NewAuthority(t).Write(filepath.Join(c.dir, "other"), nil)
				files.CA = other.CA
				return tlsFlagsOf(files)
			}},
		{name: "expired relay", relaySays: "expired certificate",
			targetSays: "certificate has expired",
			flags: func(c *tlsChain) []string {
				return tlsFlagsOf(c.authority.Write(filepath.Join(c.dir, "other"),
					[]string{"relay.test"}, mutualtlstest.Expired))
			}},
		{name: "relay of another name", allowed: "other.test", relaySays: "the peer ended TLS",
			targetSays: "none of which is an allowed name",
			flags:      func(c *tlsChain) []string { return tlsFlagsOf(c.ofRelay) }},
		{name: "target of another name", relaySays: "wanted to match storage.test",
			targetSays: "the peer ended TLS",
			flags: func(c *tlsChain) []string {
				return append(tlsFlagsOf(c.ofRelay), "--tls-server-name", "storage.test")
			}},
		{name: "relay in plain text", relaySays: "one side speaks TLS and the other does not",
			targetSays: "one side speaks TLS",
			flags:      func(*tlsChain) []string { return nil }},
	}
	for _, test := range cases {
		t.Run(test.name, func(t *testing.T) {
			var targetFlags []string
			if test.allowed != "" {
				targetFlags = []string{"--tls-allowed-name", test.allowed}
			}
			c := startTLSTarget(t, targetFlags...)
			relay := c.startRelay("comch", append(test.flags(c), "--session-wait", "0s")...)
			relay.AwaitLog(test.relaySays)
			c.target.AwaitLog(test.targetSays)
			p := c.initiator("info")
			if code := p.Wait(); code != 3 ||
				!strings.Contains(p.Stderr.String(), test.relaySays) ||
				!strings.Contains(p.Stderr.String(), "AUTHENTICATION") {
				t.Errorf("info exited with %d and says %q, want %q", code, p.Stderr.String(),
					test.relaySays)
			}
		})
	}
}

func TestARelayWithTLSReportsATargetWithout(t *testing.T) {
	t.Parallel()
	c := startTLSTarget(t)
	c.target.Terminate()
	c.startTarget()
	c.startRelay("comch",
		tlsFlagsOf(c.ofRelay)...).AwaitLog("one side speaks TLS and the other does not")
	c.target.AwaitLog("the peer speaks TLS, and this side does not")
}

func TestAConnectionWithoutACertificateIsRejected(t *testing.T) {
	t.Parallel()
	c := startTLSTarget(t)
	connection, err := tls.Dial("tcp", c.address.String(),
		&tls.Config{InsecureSkipVerify: true, NextProtos: []string{mutualtls.Protocol}})
	if err == nil {
		_, err = connection.Read(make([]byte, 1))
		connection.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "certificate required") {
		t.Errorf("error %v, want that a certificate is required", err)
	}
	c.target.AwaitLog("didn't provide a certificate")
}

func TestCertificatesAreRenewedWithoutARestart(t *testing.T) {
	t.Parallel()
	c := startTLSTarget(t)
	c.relay = c.startRelay("comch", tlsFlagsOf(c.ofRelay)...)
	c.mustServe("comch")

	address := c.address.Addr().String()
	c.authority.Write(filepath.Join(c.dir, "target"), []string{address}, mutualtlstest.Expired)
	p := c.initiator("info")
	if code := p.Wait(); code != 3 ||
		!strings.Contains(p.Stderr.String(), "certificate has expired") {
		t.Errorf("with an expired certificate at the target info exited with %d: %s", code,
			p.Stderr.String())
	}

	// Replace the authority, and with it all certificates.
	c.authority = mutualtlstest.NewAuthority(t)
	c.authority.Write(filepath.Join(c.dir, "target"), []string{address})
	c.authority.Write(filepath.Join(c.dir, "relay"), []string{"relay.test"})
	c.mustServe("comch")
	c.relay.Terminate()
	c.target.Terminate()
}

func TestUnencryptedControlConnectionsCauseAWarning(t *testing.T) {
	t.Parallel()
	const warning = "neither encrypted nor authenticated"
	c := startChain(t, "disk=memory:1MiB")
	c.mustRun("info")
	if strings.Contains(c.relay.Stderr.String()+c.target.Stderr.String(), warning) &&
		c.address.Addr().IsLoopback() {
		t.Error("there is a warning of plain text on the loopback interface")
	}
	target := spawn(t, "target", "--listen-address", "0.0.0.0", "--listen-port", "0",
		"--volume", "disk=memory:1MiB")
	target.AwaitLog(warning)
	// The warning needs no connection, so the address may lead nowhere (RFC 5737).
	relay := spawn(t, "zc-relay", "run", "--storage-server", "192.0.2.1:7470", "--volume", "disk",
		"--emulated-dir", t.TempDir())
	relay.AwaitLog(warning)
}

// eavesdropper forwards TCP connections and records their bytes.
type eavesdropper struct {
	listener net.Listener
	mu       sync.Mutex
	seen     bytes.Buffer
}

// eavesdrop forwards connections from a port beside a server's to the server.
func eavesdrop(t *testing.T, server netip.AddrPort) *eavesdropper {
	t.Helper()
	e := &eavesdropper{}
	var err error
	beside := netip.AddrPortFrom(server.Addr(), 0)
	if e.listener, err = net.Listen("tcp", beside.String()); err != nil {
		t.Fatal(err)
	}
	var passing sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	passing.Go(func() {
		for {
			near, err := e.listener.Accept()
			if err != nil {
				return
			}
			passing.Go(func() { e.pass(ctx, near, server.String()) })
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = e.listener.Close()
		passing.Wait()
	})
	return e
}

func (e *eavesdropper) pass(ctx context.Context, near net.Conn, address string) {
	defer near.Close()
	far, err := net.DialTimeout("tcp", address, testkit.Patience)
	if err != nil {
		return
	}
	defer far.Close()
	stop := context.AfterFunc(ctx, func() {
		_ = near.SetDeadline(time.Now())
		_ = far.SetDeadline(time.Now())
	})
	defer stop()
	var both sync.WaitGroup
	both.Go(func() { e.copy(far, near) })
	both.Go(func() { e.copy(near, far) })
	both.Wait()
}

func (e *eavesdropper) copy(to, from net.Conn) {
	_, _ = io.Copy(io.MultiWriter(to, e), from)
	if half, ok := to.(*net.TCPConn); ok {
		_ = half.CloseWrite()
	}
}

func (e *eavesdropper) Write(b []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.seen.Write(b)
}

func (e *eavesdropper) saw(text string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Contains(e.seen.String(), text)
}

// TestChangedRightsLeaveTheVolumeOpen changes rights by SIGHUP. A volume in memory that was opened
// again would have another UUID, and clients would refuse it.
func TestChangedRightsLeaveTheVolumeOpen(t *testing.T) {
	t.Parallel()
	c := &tlsChain{
		chain:     &chain{t: t, dir: t.TempDir(), address: listenAddress(t)},
		authority: mutualtlstest.NewAuthority(t),
	}
	c.ofTarget = c.authority.Write(filepath.Join(c.dir, "target"),
		[]string{c.address.Addr().String()})
	c.ofRelay = c.authority.Write(filepath.Join(c.dir, "relay"), []string{"relay.test"})
	file := filepath.Join(c.dir, "target.yaml")
	configure := func(rights string) {
		writeFile(t, file, []byte("volumes:\n  - {name: disk, backend: \"memory:16MiB\", "+rights+
			"}\n"))
	}
	configure("owners: [relay.test]")
	c.startTarget(append(tlsFlagsOf(c.ofTarget), "--config", file)...)
	c.volumes = []string{"disk"} // for the relay
	c.relay = c.startRelay("comch", append(tlsFlagsOf(c.ofRelay),
		"--metrics-listen", "127.0.0.1:0")...)
	run := c.initiator("verify", "--queues", "1", "--runtime", patience, "--length", "1MiB",
		"--output", "json")
	c.awaitIO()
	configure("readers: [other.test], owners: [relay.test]")
	c.target.Signal(syscall.SIGHUP)
	c.target.AwaitLog("changed the rights of relays")
	c.awaitIO()
	configure("readers: [other.test]")
	c.target.Signal(syscall.SIGHUP)
	c.target.AwaitLog("the relay has lost its right to use volume")
	if code := run.Wait(); code == 0 {
		t.Errorf("verify exited with 0: %s", run.Stderr.String())
	}
}
