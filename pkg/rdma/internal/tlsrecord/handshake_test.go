// SPDX-License-Identifier: Apache-2.0

package tlsrecord

import (
	"bytes"
	"context"
	"crypto/fips140"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/network/networktest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestConfigurationsThatDoNotFitAreRejected(t *testing.T) {
	for name, change := range map[string]func(*tls.Config){
		"older minimum": func(c *tls.Config) { c.MinVersion = tls.VersionTLS12 },
		"no minimum":    func(c *tls.Config) { c.MinVersion = 0 },
		"older maximum": func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 },
		"another configuration": func(c *tls.Config) {
			c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
				return nil, nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			client, server := connect(t, networktest.Config{})
			_ = server.Close()
			config, _ := credentials(t)
			change(config)
			_, err := Client(t.Context(), client, config)
			if status.CodeOf(err) != status.BadConfig {
				t.Errorf("%v", err)
			}
		})
	}
}

// lines collects a key log.
type lines struct {
	mu sync.Mutex
	bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(b)
}

func TestTheCallersKeyLogGetsTheKeys(t *testing.T) {
	client, server := connect(t, networktest.Config{})
	clientConfig, serverConfig := credentials(t)
	var atClient, atServer lines
	clientConfig.KeyLogWriter, serverConfig.KeyLogWriter = &atClient, &atServer
	a, b := secure(t, client, server, clientConfig, serverConfig)
	write(t, a, "hello")
	read(t, b, "hello")
	if atClient.String() != atServer.String() ||
		strings.Count(atClient.String(), "TRAFFIC_SECRET_0 ") != 2 {
		t.Errorf("%s\n%s", &atClient, &atServer)
	}
	if clientConfig.KeyLogWriter != &atClient || !serverConfig.SessionTicketsDisabled {
		t.Error("the configuration has changed")
	}
}

func TestTicketsAreOff(t *testing.T) {
	client, server := connect(t, networktest.Config{})
	clientConfig, serverConfig := credentials(t)
	clientConfig.SessionTicketsDisabled, serverConfig.SessionTicketsDisabled = false, false
	clientConfig.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	a, b := secure(t, client, server, clientConfig, serverConfig)
	write(t, b, "the first record")
	read(t, a, "the first record")
	if a.session.useless != 0 || a.session.in.sequence != 1 {
		t.Errorf("%d records have arrived", a.session.in.sequence)
	}
}

// eager is a client of crypto/tls that sends data together with its Finished message.
type eager struct {
	network.Stream
	held bytes.Buffer
}

func (e *eager) Write(b []byte) (int, error) { return e.held.Write(b) }

func (e *eager) Read(b []byte) (int, error) {
	if err := e.flush(); err != nil {
		return 0, err
	}
	return e.Stream.Read(b)
}

func (e *eager) flush() error {
	_, err := e.Stream.Write(e.held.Bytes())
	e.held.Reset()
	return err
}

func TestDataBehindTheHandshakeIsLeftInTheStream(t *testing.T) {
	client, server := connect(t, networktest.Config{})
	clientConfig, serverConfig := credentials(t)
	ctx := testkit.Context(t)
	accepting := inBackground(ctx, server, serverConfig, Server)
	together := &eager{Stream: client}
	a, err := Client(ctx, together, clientConfig)
	if err != nil {
		t.Fatal(err)
	}
	write(t, a, "first")
	write(t, a, "second")
	if err := together.flush(); err != nil {
		t.Fatal(err)
	}
	accepted := testkit.Receive(t, "the server's handshake is over", accepting)
	if accepted.err != nil {
		t.Fatal(accepted.err)
	}
	read(t, accepted.stream, "firstsecond")
}

func TestTheHandshakesConnectionIsOver(t *testing.T) {
	client, server := connect(t, networktest.Config{})
	clientConfig, serverConfig := credentials(t)
	var used net.Conn // by crypto/tls
	certificate := serverConfig.Certificates[0]
	serverConfig.Certificates = nil
	serverConfig.GetCertificate = func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		used = hello.Conn
		return &certificate, nil
	}
	a, b := secure(t, client, server, clientConfig, serverConfig)
	write(t, a, "data")
	_, readErr := used.Read(make([]byte, 1))
	_, writeErr := used.Write([]byte("x"))
	halfErr := used.(interface{ CloseWrite() error }).CloseWrite()
	for _, err := range []error{readErr, writeErr, used.Close(), halfErr} {
		if !errors.Is(err, errHandedOver) {
			t.Errorf("%v", err)
		}
	}
	read(t, b, "data")
	write(t, b, "and back")
	read(t, a, "and back")
}

func TestHandshakesEndWithTheirContext(t *testing.T) {
	mine := status.Errorf(status.InUse, "another connection is faster")
	for name, c := range map[string]struct {
		context func(ctx context.Context) (context.Context, context.CancelFunc)
		want    error
		code    status.Code
	}{
		"time out": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Minute)
		}, context.DeadlineExceeded, status.TimeOut},
		"cause": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancelCause(ctx)
			time.AfterFunc(time.Minute, func() { cancel(mine) })
			return ctx, func() { cancel(nil) }
		}, mine, status.InUse},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				clientConfig, serverConfig := credentials(t)
				client, server := connect(t, networktest.Config{})
				ctx, cancel := c.context(t.Context())
				defer cancel()
				begun := time.Now()
				_, clientErr := Client(ctx, client, clientConfig)
				if took := time.Since(begun); took != time.Minute {
					t.Errorf("took %v", took)
				}
				_, serverErr := Server(ctx, server, serverConfig)
				for _, err := range []error{clientErr, serverErr} {
					if !errors.Is(err, c.want) || status.CodeOf(err) != c.code {
						t.Errorf("%v, want %v", err, c.want)
					}
				}
				// The caller still owns the connection.
				for _, s := range []network.Stream{client, server} {
					if err := errors.Join(s.SetDeadline(time.Time{}), s.Close()); err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}

func TestADeadlineOfTheStreamIsATimeout(t *testing.T) {
	client, _ := connect(t, networktest.Config{})
	config, _ := credentials(t)
	_ = client.SetDeadline(time.Unix(1, 0))
	_, err := Client(t.Context(), client, config)
	if status.CodeOf(err) != status.TimeOut || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

func TestACertificateThatIsRejected(t *testing.T) {
	authority, stranger := mutualtlstest.NewAuthority(t), mutualtlstest.NewAuthority(t)
	load := func(a *mutualtlstest.Authority, name string) *mutualtls.Credentials {
		c, err := mutualtls.Load(a.Write(t.TempDir(), []string{name}), nil)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	good := load(authority, "target.test").Server(nil)
	clientConfig := load(authority, "relay.test").Client("target.test")

	t.Run("by the server", func(t *testing.T) {
		for name, c := range map[string]struct {
			client func() *tls.Config
			server *tls.Config
			text   string
		}{
			"unknown authority": {func() *tls.Config {
				config := load(stranger, "relay.test").Client("target.test")
				config.RootCAs = clientConfig.RootCAs
				return config
			}, good, "unknown certificate authority (TLS alert 48)"},
			"none": {func() *tls.Config {
				config := clientConfig.Clone()
				config.Certificates, config.GetClientCertificate = nil, nil
				return config
			}, good, "certificate required (TLS alert 116)"},
			"wrong name": {func() *tls.Config { return clientConfig },
				load(authority, "target.test").Server(mutualtlstest.Names("other.test")),
				"bad certificate (TLS alert 42)"},
		} {
			t.Run(name, func(t *testing.T) {
				near, far := connect(t, networktest.Config{})
				accepting := inBackground(t.Context(), far, c.server, Server)
				s, err := Client(t.Context(), near, c.client())
				if err != nil {
					t.Fatal(err) // the client cannot know yet
				}
				result := testkit.Receive(t, "the server has rejected it", accepting)
				if status.CodeOf(result.err) != status.Authentication {
					t.Errorf("the server says %v", result.err)
				}
				for range 2 {
					_, err = s.Read(make([]byte, 1))
					want := "the peer rejected this side's certificate: " + c.text
					if status.CodeOf(err) != status.Authentication ||
						!strings.Contains(err.Error(), want) {
						t.Errorf("the client reads %v, want %s", err, want)
					}
				}
				// The server still owns its connection.
				if _, err := far.Write([]byte("x")); err != nil {
					t.Error(err)
				}
			})
		}
	})
	t.Run("by the client", func(t *testing.T) {
		near, far := connect(t, networktest.Config{})
		other := load(stranger, "target.test").Server(nil)
		accepting := inBackground(t.Context(), far, other, Server)
		_, err := Client(t.Context(), near, clientConfig)
		if status.CodeOf(err) != status.Authentication ||
			!strings.Contains(err.Error(), "this side rejected the peer's certificate: ") {
			t.Errorf("the client says %v", err)
		}
		result := testkit.Receive(t, "the server has been told", accepting)
		if status.CodeOf(result.err) != status.Authentication ||
			!strings.Contains(result.err.Error(), "rejects this side's certificate") {
			t.Errorf("the server says %v", result.err)
		}
	})
}

func TestPeersThatDoNotSpeakTLS(t *testing.T) {
	for name, c := range map[string]struct {
		peer func(far network.Stream) error
		code status.Code
		text string
	}{
		"plain": {func(far network.Stream) error {
			_, err := far.Write([]byte("MPA ID Rep Frame\x00\x00\x00\x00"))
			return err
		}, status.Authentication, "set up TLS on both sides or on neither"},
		"closed": {func(far network.Stream) error { return far.CloseWrite() },
			status.ConnectionReset, "lost the connection"},
		"reset": {func(far network.Stream) error {
			return errors.Join(far.SetLinger(0), far.Close())
		}, status.ConnectionReset, "lost the connection"},
		"endless": {func(far network.Stream) error {
			_, err := far.Write(bytes.Repeat(unhex("14 0303 0001 01"), maxHandshake/6+1))
			return err
		}, status.Authentication, ""},
	} {
		t.Run(name, func(t *testing.T) {
			near, far := connect(t, networktest.Config{})
			if err := c.peer(far); err != nil {
				t.Fatal(err)
			}
			config, _ := credentials(t)
			_, err := Client(t.Context(), near, config)
			if status.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%v, want %v and %q", err, c.code, c.text)
			}
		})
	}
}

// The alert is the client's first record. TCP must not lose it when the server resets the
// connection, because the client has sent data that the server has not read.
func TestTheReasonOfARejectionArrivesBeforeTheReset(t *testing.T) {
	near, far := connectTCP(t)
	clientConfig, serverConfig := credentials(t)
	serverConfig.ClientCAs = x509.NewCertPool()
	accepting := inBackground(t.Context(), far, serverConfig, Server)
	s, err := Client(t.Context(), near, clientConfig)
	if err != nil {
		t.Fatal(err)
	}
	if result := testkit.Receive(t, "the server has rejected it", accepting); result.err == nil {
		t.Fatal("the server accepts it")
	}
	write(t, s, "a request")
	if err := far.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Read(make([]byte, 1)); status.CodeOf(err) != status.Authentication {
		t.Errorf("%v", err)
	}
}

func TestALongCertificateIsRejected(t *testing.T) {
	near, far := connect(t, networktest.Config{})
	authority := mutualtlstest.NewAuthority(t)
	names := []string{"target.test"}
	for i := range maxHandshake / 16 {
		names = append(names, fmt.Sprintf("host%06d.test", i))
	}
	server, err := mutualtls.Load(authority.Write(t.TempDir(), names), nil)
	if err != nil {
		t.Fatal(err)
	}
	client, err := mutualtls.Load(authority.Write(t.TempDir(), nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	accepting := inBackground(t.Context(), far, server.Server(nil), Server)
	_, err = Client(t.Context(), near, client.Client("target.test"))
	if status.CodeOf(err) != status.Authentication || !errors.Is(err, errLongHandshake) {
		t.Errorf("%v", err)
	}
	_ = near.Close()
	testkit.Receive(t, "the server's handshake is over", accepting)
}

func TestAHandshakeIsBounded(t *testing.T) {
	near, far := connect(t, networktest.Config{})
	c := &handshakeConn{Stream: near}
	if _, err := far.Write(bytes.Repeat(unhex("16 0303 0001 01"), maxHandshake/6+1)); err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, onlyReader{c})
	if n < maxHandshake || n > maxHandshake+MaxRecord || !errors.Is(err, errLongHandshake) {
		t.Errorf("read %d bytes, %v", n, err)
	}
}

type onlyReader struct{ io.Reader }

// rerun runs tests in a process whose cryptography follows FIPS 140-3.
func rerun(t *testing.T, mode, tests string) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "-test.run="+tests)
	cmd.Env = append(os.Environ(), "GODEBUG=fips140="+mode)
	output, err := cmd.CombinedOutput()
	if err != nil || bytes.Contains(output, []byte("no tests")) {
		t.Errorf("%v: %s", err, output)
	}
}

func TestFIPS(t *testing.T) {
	rerun(t, "on", "^(TestDataCrossesBothWays|TestKeysChange|TestRecordsOfTheTraceAreOpened)$")
}

func TestStrictFIPSIsNotSupported(t *testing.T) {
	if !fips140.Enforced() {
		rerun(t, "only", "^TestStrictFIPSIsNotSupported$")
		return
	}
	secret := make([]byte, 32)
	_, err := newSession(anySuite, true, secret, secret)
	if status.CodeOf(err) != status.NotSupported || !strings.Contains(err.Error(), "fips140=on") {
		t.Errorf("%v", err)
	}
}
