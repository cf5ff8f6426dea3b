// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
)

// flooded is a chain that strangers flood, at all listeners that they can reach.
type flooded struct {
	*tlsChain
	iwarp   *testkit.Process // a relay over iWARP; chain.relay is over shm
	plain   *testkit.Process // a gateway without TLS
	gateway *testkit.Process // a gateway with TLS
	token   string           // file with the token for the target's administration
	roots   *x509.CertPool
	hello   []byte // the first message of a TLS client
}

// flood is what strangers do to a listener, and what an honest client does meanwhile.
type flood struct {
	name             string
	network, address string
	count            int
	beginnings       []string // what a connection sends before it falls silent
	victim           *testkit.Process
	honest           func(t *testing.T)
}

// open opens the connections of a flood, a few of each from an address of their own, and
// returns how to end them. Some are closed by the victim, which has enough.
func (f *flood) open(t *testing.T) (end func()) {
	t.Helper()
	const perSource = 16
	var all []net.Conn
	var dialer net.Dialer
	for i := range f.count {
		if i%perSource == 0 && f.network == "tcp" {
			dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(testkit.Address(t), 0))
		}
		c, err := dialer.DialContext(t.Context(), f.network, f.address)
		if err != nil {
			break // it accepts no more
		}
		all = append(all, c)
		_ = c.SetDeadline(time.Now().Add(testkit.Patience))
		if beginning := f.beginnings[i%len(f.beginnings)]; beginning != "" {
			_, _ = io.WriteString(c, beginning)
		}
	}
	if len(all) < f.count/2 {
		t.Fatalf("only %d of %d connections were possible", len(all), f.count)
	}
	return func() {
		for _, c := range all {
			_ = c.Close()
		}
	}
}

// firstMessage returns what a TLS client sends before it needs a reply.
func firstMessage(t *testing.T) []byte {
	t.Helper()
	client, server := net.Pipe()
	handshake := make(chan error, 1)
	go func() {
		handshake <- tls.Client(client, &tls.Config{ServerName: "localhost",
			InsecureSkipVerify: true}).Handshake()
	}()
	message := make([]byte, 1<<14)
	n, err := server.Read(message)
	if err = errors.Join(err, server.Close()); err != nil {
		t.Fatal(err)
	}
	<-handshake // fails
	_ = client.Close()
	return message[:n]
}

func startFlooded(t *testing.T) *flooded {
	t.Helper()
	directory := t.TempDir()
	authority := mutualtlstest.NewAuthority(t)
	files := authority.Write(directory, []string{"127.0.0.1", "localhost"})
	web, token := filepath.Join(directory, "web.yaml"), filepath.Join(directory, "token")
	writeFile(t, web, fmt.Appendf(nil, "tls_server_config: {cert_file: %q, key_file: %q}\n",
		files.Certificate, files.Key))
	writeFile(t, token, []byte(strings.Repeat("secret", 10)+"\n"))
	if err := errors.Join(os.Chmod(web, 0o600), os.Chmod(token, 0o600)); err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(readFile(t, files.CA))
	// Core dumps let a user without privileges count descriptors.
	f := &flooded{roots: roots, token: token, hello: firstMessage(t),
		tlsChain: startTLSTarget(t, "--core-dumps", "--metrics-listen", "127.0.0.1:0",
			"--web-config-file", web, "--admin-listen", "127.0.0.1:0", "--admin-token-file", token,
			"--admin-web-config-file", web)}
	flags := append(tlsFlagsOf(f.ofRelay), "--core-dumps", "--metrics-listen", "127.0.0.1:0")
	f.relay = f.startRelay("comch", append(flags, "--rdma-provider", "shm")...)
	f.iwarp = f.startRelay("iwarp", append(flags, "--rdma-provider", "iwarp")...)
	gateway := []string{"nbd", "--core-dumps", "--listen", "127.0.0.1:0", "--print-uri",
		"--metrics-listen", "127.0.0.1:0"}
	f.plain = f.initiatorAt("comch", gateway...)
	f.gateway = f.initiatorAt("comch", append(gateway, tlsFlagsOf(files)...)...)
	return f
}

// client returns an HTTP client with an address of its own.
func (f *flooded) client(t *testing.T) *http.Client {
	t.Helper()
	dialer := net.Dialer{
		LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(testkit.Address(t), 0))}
	return &http.Client{Timeout: testkit.Patience, Transport: &http.Transport{
		DisableKeepAlives: true, DialContext: dialer.DialContext,
		TLSClientConfig: &tls.Config{RootCAs: f.roots}}}
}

// get returns a document of a program that serves metrics.
func (f *flooded) get(t *testing.T, client *http.Client, p *testkit.Process, path string) string {
	t.Helper()
	scheme := "http://"
	if p == f.target {
		scheme = "https://"
	}
	response, err := client.Get(scheme + opsAddress(t, p) + path)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s of %s: %d, %v: %s", path, p.Name, response.StatusCode, err, body)
	}
	return string(body)
}

// uses returns the descriptors and the goroutines of a program.
func (f *flooded) uses(t *testing.T, client *http.Client, p *testkit.Process) (descriptors,
	goroutines int) {
	t.Helper()
	goroutines = int(sumMetric(f.get(t, client, p, "/metrics"), "go_goroutines"))
	if goroutines == 0 {
		t.Fatalf("%s does not count its goroutines", p.Name)
	}
	return p.Descriptors(), goroutines
}

// undergo checks that an honest client is served during a flood, and that nothing of it is left.
func (f *flooded) undergo(t *testing.T, attack *flood) {
	t.Helper()
	client := f.client(t)
	attack.honest(t) // so that what the first one leaves for the next is counted
	var descriptors, goroutines int
	testkit.Eventually(t, attack.victim.Name+" is at rest", func() bool {
		d, g := descriptors, goroutines
		descriptors, goroutines = f.uses(t, client, attack.victim)
		return d == descriptors && g == goroutines
	})
	end := attack.open(t)
	attack.honest(t)
	most := attack.victim.Descriptors()
	attack.honest(t)
	end()
	var d, g int
	defer func() {
		t.Logf("%s had %d descriptors and %d goroutines, during the flood %d descriptors, and has "+
			"%d and %d", attack.victim.Name, descriptors, goroutines, most, d, g)
	}()
	testkit.Eventually(t, attack.victim.Name+" has what it had", func() bool {
		d, g = f.uses(t, client, attack.victim)
		return d <= descriptors && g <= goroutines
	})
}

// read is the honest client of a relay: its session has a control connection of its own to the
// target, and RDMA connections.
func (f *flooded) read(directory string) func(*testing.T) {
	return func(t *testing.T) {
		t.Helper()
		copied := filepath.Join(t.TempDir(), "copy")
		p := f.initiatorAt(directory, "get", "--length", "64KiB", copied)
		if code := p.Wait(); code != 0 || len(readFile(t, copied)) != 64<<10 {
			t.Fatalf("get exited with %d: %s", code, p.Stderr.String())
		}
	}
}

// readNBD is the honest client of a gateway.
func (f *flooded) readNBD(uri string) func(*testing.T) {
	return func(t *testing.T) {
		t.Helper()
		output, err := exec.CommandContext(t.Context(), "nbdinfo", "--size", uri).CombinedOutput()
		if err != nil || strings.TrimSpace(string(output)) != "1048576" {
			t.Fatalf("nbdinfo prints %s, error %v", output, err)
		}
	}
}

func TestFloodsKeepNobodyOutAndLeaveNothing(t *testing.T) {
	t.Parallel()
	testkit.RequireTools(t, "nbdinfo")
	f := startFlooded(t)
	const few, many = 300, 1200 // more than a listener keeps
	http := []string{"", "G", "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n",
		"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 60000\r\n\r\n"}
	handshake := []string{"", string(f.hello[:3]), string(f.hello[:len(f.hello)-1]), string(f.hello)}
	iwarp := []string{"", "MPA ID Req", "MPA ID Req Frame\x40\x01\x00\x14zcr1"}
	negotiation := []string{"", "\x00\x00\x00\x03", "\x00\x00\x00\x03IHAVEOPT\x00\x00\x00\x07\x00\x00"}
	const startTLS = "\x00\x00\x00\x03IHAVEOPT\x00\x00\x00\x05\x00\x00\x00\x00"
	overTLS := []string{"", startTLS, startTLS + string(f.hello[:9]), startTLS + string(f.hello)}

	f.target.AwaitLog("serving administration")
	_, rest, _ := strings.Cut(f.target.Stderr.String(), "serving administration")
	_, rest, _ = strings.Cut(rest, `"address": "`)
	admin, _, _ := strings.Cut(rest, `"`)
	rdma := netip.MustParseAddrPort(f.rdmaAddress())
	host := func(uri string) string {
		_, address, _ := strings.Cut(uri, "://")
		return strings.Trim(address, "/")
	}
	plain, secure := printedURI(t, f.plain), printedURI(t, f.gateway)
	scrape := func(p *testkit.Process) func(*testing.T) {
		return func(t *testing.T) {
			client := f.client(t)
			for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
				f.get(t, client, p, path)
			}
		}
	}
	for _, attack := range []flood{
		{"requests for metrics", "tcp", opsAddress(t, f.relay), few, http, f.relay, scrape(f.relay)},
		{"handshakes for metrics", "tcp", opsAddress(t, f.target), few, handshake, f.target,
			scrape(f.target)},
		{"handshakes for administration", "tcp", admin, few, handshake, f.target,
			func(t *testing.T) {
				p := spawn(t, "target", "status", "--admin", admin, "--admin-token-file", f.token,
					"--admin-tls-ca", filepath.Join(filepath.Dir(f.token), "ca.pem"))
				if code := p.Wait(); code != 0 {
					t.Fatalf("status exited with %d", code)
				}
			}},
		{"handshakes of relays", "tcp", f.address.String(), many, handshake, f.target,
			f.read("comch")},
		{"RDMA connections", "tcp", rdma.String(), few, iwarp, f.target, f.read("iwarp")},
		{"connections to shm", "unixpacket", fmt.Sprintf("@zc-relay/rdma/%d", rdma.Port()), few,
			[]string{""}, f.target, f.read("comch")},
		{"NBD negotiations", "tcp", host(plain), few, negotiation, f.plain, f.readNBD(plain)},
		{"NBD handshakes", "tcp", host(secure), few, overTLS, f.gateway, scrape(f.gateway)},
	} {
		t.Run(attack.name, func(t *testing.T) { f.undergo(t, &attack) })
	}
	t.Run("sockets of another user that linger in shm", func(t *testing.T) {
		f.undergo(t, &flood{name: "lingering", count: 1, network: "unixpacket",
			address: fmt.Sprintf("@zc-relay/rdma/%d", rdma.Port()), beginnings: []string{""},
			victim: f.target, honest: func(t *testing.T) {
				release := lingerAsNobody(t, fmt.Sprintf("@zc-relay/rdma/%d", rdma.Port()))
				defer release()
				f.read("comch")(t)
			}})
	})
	for _, p := range []*testkit.Process{f.plain, f.gateway, f.relay, f.iwarp, f.target} {
		p.Terminate()
	}
}

// lingerAsNobody connects as another user, and queues a descriptor in each socket that takes until
// release to close.
func lingerAsNobody(t *testing.T, name string) (release func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can act as another user")
	}
	const nobody, sockets = 65534, 8
	var releases []func()
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocks it, so that the thread ends
		// The function of package unix would change all threads.
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 {
			result <- errno
			return
		}
		for range sockets {
			release, err := linger(name)
			if err != nil {
				result <- err
				return
			}
			releases = append(releases, release)
		}
		result <- nil
	}()
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	return func() {
		for _, release := range releases {
			release()
		}
	}
}

// linger connects to a listener, queues a descriptor there that takes until release to close, and
// leaves.
func linger(name string) (release func(), err error) {
	// A child that had the descriptor, too, would wait for release before it runs its program.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	socket, err := testkit.DialPackets(name, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(socket)
	stuck, release, err := testkit.StuckDescriptor()
	if err != nil {
		return nil, err
	}
	err = unix.Sendmsg(socket, []byte{1}, unix.UnixRights(stuck), nil, unix.MSG_NOSIGNAL)
	if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		err = nil // the listener was faster
	}
	var before, now unix.Stat_t
	err = errors.Join(err, unix.Fstat(stuck, &before))
	go func() { _ = unix.Close(stuck) }() // blocks if the listener has closed its own already
	for err == nil && unix.Fstat(stuck, &now) == nil && now.Ino == before.Ino {
		runtime.Gosched()
	}
	return release, err
}
