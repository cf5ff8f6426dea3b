// SPDX-License-Identifier: Apache-2.0

package mutualtls_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func names(config *tls.Config) []string { return config.Certificates[0].Leaf.DNSNames }

func checkNames(t *testing.T, c *mutualtls.Credentials, want string) {
	t.Helper()
	if got := names(c.Client("target.test")); len(got) != 1 || got[0] != want {
		t.Errorf("the client's certificate is for %q, want %q", got, want)
	}
	if got := names(c.Server(nil)); len(got) != 1 || got[0] != want {
		t.Errorf("the server's certificate is for %q, want %q", got, want)
	}
}

func TestARenewedCertificateIsUsedByTheNextConnection(t *testing.T) {
	authority, dir := mutualtlstest.NewAuthority(t), t.TempDir()
	c, err := mutualtls.Load(authority.Write(dir, []string{"old.test"}), nil)
	if err != nil {
		t.Fatal(err)
	}
	checkNames(t, c, "old.test")
	end := time.Now().Add(time.Hour).Truncate(time.Second)
	authority.Write(dir, []string{"new.test"}, mutualtlstest.Until(end))
	if !c.NotAfter().Equal(end) { // without a connection
		t.Errorf("NotAfter = %v, want %v", c.NotAfter(), end)
	}
	checkNames(t, c, "new.test")
}

// handshake connects a client to a server, and returns the server's error.
func handshake(t *testing.T, client, server *tls.Config) error {
	t.Helper()
	own, peer := net.Pipe()
	failed := make(chan error, 1)
	go func() {
		defer peer.Close()
		failed <- tls.Server(peer, server).HandshakeContext(t.Context())
	}()
	secured := tls.Client(own, client)
	_, _ = secured.Read(make([]byte, 1)) // does the handshake, and waits for the server's end
	_ = own.Close()
	return <-failed
}

func TestOnlyInvitedClientsAreServed(t *testing.T) {
	authority := mutualtlstest.NewAuthority(t)
	load := func(a *mutualtlstest.Authority, names ...string) *mutualtls.Credentials {
		c, err := mutualtls.Load(a.Write(t.TempDir(), names), nil)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	server := load(authority, "target.test").Server(mutualtlstest.Names("Relay.test", "10.1.2.3"))
	relay := load(authority, "relay.test")
	roots := relay.Client("target.test").RootCAs
	for name, test := range map[string]struct {
		client  *mutualtls.Credentials
		change  func(*tls.Config)
		welcome bool
	}{
		"by its name":          {relay, nil, true},
		"by its address":       {load(authority, "10.1.2.3"), nil, true},
		"by a second name":     {load(authority, "other.test", "RELAY.TEST"), nil, true},
		"without a name":       {load(authority), nil, false},
		"of another name":      {load(authority, "other.test"), nil, false},
		"of a longer name":     {load(authority, "a.relay.test"), nil, false},
		"of a part of it":      {load(authority, "test"), nil, false},
		"of another authority": {load(mutualtlstest.NewAuthority(t), "relay.test"), nil, false},
		"without a certificate": {relay, func(c *tls.Config) {
			c.Certificates, c.GetClientCertificate = nil, nil
		}, false},
		"of another service": {relay, func(c *tls.Config) { c.NextProtos = []string{"h2"} }, false},
		"of no service":      {relay, func(c *tls.Config) { c.NextProtos = nil }, false},
		"with TLS 1.2": {relay, func(c *tls.Config) {
			c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			config := test.client.Client("target.test")
			config.RootCAs = roots
			if test.change != nil {
				test.change(config)
				config.VerifyConnection = nil
			}
			if err := handshake(t, config, server); (err == nil) != test.welcome {
				t.Errorf("the server says %v", err)
			}
		})
	}
}

func TestANewAuthorityIsUsedByTheNextConnection(t *testing.T) {
	former, dir := mutualtlstest.NewAuthority(t), t.TempDir()
	c, err := mutualtls.Load(former.Write(dir, nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	before := c.Server(nil).ClientCAs
	mutualtlstest.NewAuthority(t).Write(dir, nil)
	if c.Server(nil).ClientCAs.Equal(before) || c.Client("target.test").RootCAs.Equal(before) {
		t.Error("the former authority is still trusted")
	}
}

func TestUnusableFilesAreLoggedOnceAndChangeNothing(t *testing.T) {
	authority, dir := mutualtlstest.NewAuthority(t), t.TempDir()
	core, logged := observer.New(zapcore.WarnLevel)
	files := authority.Write(dir, []string{"good.test"})
	c, err := mutualtls.Load(files, zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(files.Key, []byte("half a key"), 0o600); err != nil {
		t.Fatal(err)
	}
	checkNames(t, c, "good.test")
	if n := logged.FilterMessageSnippet("cannot be used").Len(); n != 1 {
		t.Errorf("%d warnings, want 1", n)
	}
	if err := c.Reload(); status.CodeOf(err) != status.BadConfig {
		t.Errorf("Reload = %v, want BAD_CONFIG", err)
	}
	if err := os.Remove(files.CA); err != nil {
		t.Fatal(err)
	}
	checkNames(t, c, "good.test")
	authority.Write(dir, []string{"better.test"})
	checkNames(t, c, "better.test")
	before := logged.FilterMessageSnippet("cannot be used").Len()
	if err := os.Remove(files.CA); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		checkNames(t, c, "better.test")
	}
	if n := logged.FilterMessageSnippet("cannot be used").Len() - before; n != 1 {
		t.Errorf("%d warnings after a file was removed, want 1", n)
	}
}

func TestAFIFOInPlaceOfAKeyDoesNotBlockConnections(t *testing.T) {
	authority, dir := mutualtlstest.NewAuthority(t), t.TempDir()
	files := authority.Write(dir, []string{"good.test"})
	c, err := mutualtls.Load(files, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(files.Key), syscall.Mkfifo(files.Key, 0o600)); err != nil {
		t.Fatal(err)
	}
	checkNames(t, c, "good.test")
	if err := c.Reload(); status.CodeOf(err) != status.BadConfig {
		t.Errorf("Reload = %v, want BAD_CONFIG", err)
	}
	if err := os.Remove(files.Key); err != nil {
		t.Fatal(err)
	}
	authority.Write(dir, []string{"better.test"})
	checkNames(t, c, "better.test")
}

func TestACertificateThatExpiresSoonCausesAWarning(t *testing.T) {
	cases := []struct {
		end  time.Duration
		want string
	}{
		{-time.Hour, "has expired"}, {time.Hour, "expires soon"}, {30 * 24 * time.Hour, ""},
	}
	for _, c := range cases {
		core, logged := observer.New(zapcore.WarnLevel)
		files := mutualtlstest.NewAuthority(t).Write(t.TempDir(), nil,
			mutualtlstest.Until(time.Now().Add(c.end)))
		if _, err := mutualtls.Load(files, zap.New(core)); err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, entry := range logged.All() {
			got += entry.Message
		}
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("a certificate that expires in %v: warning %q, want %q", c.end, got, c.want)
		}
	}
}

func TestErrorsNameTheFileThatCannotBeLoaded(t *testing.T) {
	authority := mutualtlstest.NewAuthority(t)
	cases := []struct {
		name   string
		change func(*mutualtls.Files) error
		want   string
	}{
		{"no certificate", func(f *mutualtls.Files) error { return os.Remove(f.Certificate) },
			"certificate.pem: no such file"},
		{"the key of another certificate", func(f *mutualtls.Files) error {
			f.Key = authority.Write(t.TempDir(), nil).Key
			return nil
		}, "private key does not match"},
		{"authorities without a certificate",
			func(f *mutualtls.Files) error { return os.WriteFile(f.CA, []byte("nothing"), 0o600) },
			`ca.pem" holds no certificate`},
		{"an endless file", func(f *mutualtls.Files) error {
			f.CA = "/dev/zero"
			return nil
		}, "/dev/zero is a device, not a regular file"},
		{"a file that is too large",
			func(f *mutualtls.Files) error { return os.Truncate(f.CA, 1<<20+1) },
			"ca.pem is larger than 1048576 bytes"},
		{"a FIFO", func(f *mutualtls.Files) error {
			return errors.Join(os.Remove(f.Key), syscall.Mkfifo(f.Key, 0o600))
		}, "is a pipe, not a regular file"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			files := authority.Write(t.TempDir(), nil)
			if err := c.change(&files); err != nil {
				t.Fatal(err)
			}
			_, err := mutualtls.Load(files, nil)
			if status.CodeOf(err) != status.BadConfig || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Load = %v, want BAD_CONFIG and %q", err, c.want)
			}
		})
	}
}

// BenchmarkHandshake measures the CPU time of a full handshake on either side, with the kernel's
// for its TCP connection. Each side checks its files first, and verifies the other's certificate.
func BenchmarkHandshake(b *testing.B) {
	for name, newKey := range map[string]func() (crypto.Signer, error){
		"ECDSA-P256": func() (crypto.Signer, error) {
			return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		},
		"RSA-2048": func() (crypto.Signer, error) { return rsa.GenerateKey(rand.Reader, 2048) },
	} {
		b.Run(name, func(b *testing.B) {
			authority := mutualtlstest.NewAuthorityWithKeys(b, newKey)
			load := func(name string) *mutualtls.Credentials {
				c, err := mutualtls.Load(authority.Write(b.TempDir(), []string{name}), nil)
				check(err)
				return c
			}
			relay, target := load("relay.test"), load("target.test")
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			check(err)
			defer listener.Close()
			served := make(chan time.Duration)
			go func() {
				served <- cpuTime(func() {
					for range b.N {
						connection, err := listener.Accept()
						check(err)
						secured := tls.Server(connection,
							target.Server(mutualtlstest.Names("relay.test")))
						_, err = secured.Write([]byte{0}) // after the handshake
						check(err)
						_ = secured.Close()
					}
				})
			}()
			b.ResetTimer()
			dialled := cpuTime(func() {
				for range b.N {
					connection, err := net.Dial("tcp", listener.Addr().String())
					check(err)
					secured := tls.Client(connection, relay.Client("target.test"))
					_, err = secured.Read(make([]byte, 1))
					check(err)
					_ = secured.Close()
				}
			})
			n := float64(b.N)
			b.ReportMetric(float64(dialled.Microseconds())/n, "µs-CPU/dialling")
			b.ReportMetric(float64((<-served).Microseconds())/n, "µs-CPU/accepting")
		})
	}
}

// check panics because it is called outside of the benchmark's goroutine, too.
func check(err error) {
	if err != nil {
		panic(err)
	}
}

// cpuTime returns the CPU time that do takes on its thread.
func cpuTime(do func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, after unix.Timespec
	check(unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &before))
	do()
	check(unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &after))
	return time.Duration(after.Nano() - before.Nano())
}
