// SPDX-License-Identifier: Apache-2.0

package iwarp

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

const serverName = "target.test"

// secureEndpoint is an endpoint for peers with TLS. The test plays them, with crypto/tls.
type secureEndpoint struct {
	*endpoint
	authority *mutualtlstest.Authority
	honest    *mutualtls.Credentials
	logged    *observer.ObservedLogs
}

func newSecureEndpoint(t *testing.T, options Options, isRequired bool) *secureEndpoint {
	t.Helper()
	e := &secureEndpoint{authority: mutualtlstest.NewAuthority(t)}
	server := credentialsOf(t, e.authority, serverName)
	e.honest = credentialsOf(t, e.authority, "relay.test")
	var core zapcore.Core
	core, e.logged = observer.New(zap.InfoLevel)
	options.Logger = zap.New(core)
	e.endpoint = newEndpointOf(t, options,
		func(d *device, ctx context.Context, address netip.AddrPort) (rdma.Listener, error) {
			return d.ListenTLS(ctx, address, rdma.ServerTLS{Required: isRequired,
				Config: func() *tls.Config { return server.DataServer(nil) }})
		})
	return e
}

func credentialsOf(
	t testing.TB, authority *mutualtlstest.Authority, name string,
) *mutualtls.Credentials {
	t.Helper()
	c, err := mutualtls.Load(authority.Write(t.TempDir(), []string{name}), nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// expectSecureClient checks that an honest client is served. Its TLS is that of crypto/tls.
func (e *secureEndpoint) expectSecureClient() {
	e.Helper()
	e.expectRequest(tls.Client(e.dial(), e.honest.DataClient(serverName)))
}

// expectDropped waits until a number of clients have been dropped, and checks the reason for the
// last one.
func (e *secureEndpoint) expectDropped(count int, code status.Code, reasons ...string) {
	e.Helper()
	dropped := func() []observer.LoggedEntry {
		return e.logged.FilterMessage("iwarp client dropped").All()
	}
	testkit.Eventually(e.T, "a client is dropped", func() bool { return len(dropped()) >= count })
	last := dropped()[count-1]
	err := last.Context[0].Interface.(error)
	if status.CodeOf(err) != code {
		e.Errorf("dropped with code %v: %v", status.CodeOf(err), err)
	}
	for _, reason := range reasons {
		if !strings.Contains(err.Error(), reason) {
			e.Errorf("dropped because of %q, want %q", err, reason)
		}
	}
}

func TestPeersWithoutTLSAreTurnedAwayBeforeMPAIsRead(t *testing.T) {
	e := newSecureEndpoint(t, Options{HandshakeTimeout: testkit.Patience}, true)
	invalid := newRequest(false, 4, 4, nil)
	invalid.markers = true // which a listener that reads MPA answers
	random := make([]byte, 64<<10)
	generator := seedtest.Random(t, 0)
	for i := range random {
		random[i] = byte(generator.Uint32())
	}
	for i, c := range []struct {
		name string
		sent []byte
	}{
		{"a valid request", e.validRequest()},
		{"an invalid request", invalid.append(nil, mpaRequestKey)},
		{"the first byte of a request", e.validRequest()[:1]},
		{"HTTP", []byte("GET / HTTP/1.1\r\n\r\n")},
		{"zeros", make([]byte, 100)},
		{"a record of TLS with data", []byte{23, 3, 3, 0, 17}},
		{"garbage", append([]byte{0xff}, random...)},
	} {
		conn := e.dial()
		_, _ = conn.Write(c.sent) // a reset may overtake the end of the garbage
		e.expectDropped(1+i, status.Authentication, "does not use TLS, which this side requires")
		if answer := e.expectClosed(conn); len(answer) > 0 {
			t.Errorf("%s is answered by %x", c.name, answer)
		}
	}
	e.expectSecureClient()
	e.Run("accepted", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if request, err := e.listener.Accept(ctx); err == nil {
			t.Errorf("there is another request: %q", request.PrivateData())
		}
	})
}

func TestTheFirstByteTellsWhoUsesTLS(t *testing.T) {
	e := newSecureEndpoint(t, Options{HandshakeTimeout: testkit.Patience}, false)
	for range 3 {
		e.expectValidClient()
		e.expectSecureClient()
	}
	plain := newEndpoint(t, Options{HandshakeTimeout: testkit.Patience})
	client := e.honest.DataClient(serverName)
	for _, c := range []struct {
		to      *endpoint
		secure  *rdma.ClientTLS
		binding int
		want    rdma.Protection
	}{
		{e.endpoint, nil, 0, rdma.Unprotected},
		{e.endpoint, &rdma.ClientTLS{Config: client,
			PrivateData: func(binding []byte) []byte { return binding }}, 32, rdma.ProtectedByTLS},
	} {
		requests := make(chan rdma.Request, 1)
		go func() {
			request, err := c.to.listener.Accept(contextFor(t))
			if err == nil {
				requests <- request
				err = request.Reject([]byte("enough"))
			}
			if err != nil {
				t.Error(err)
			}
		}()
		config := plain.config
		config.TLS = c.secure
		_, err := plain.device.Connect(contextFor(t), c.to.listener.Address(), config)
		if rejected, is := errors.AsType[*rdma.RejectedError](err); !is ||
			string(rejected.Reason) != "enough" {
			t.Errorf("Connect: %v", err)
		}
		request := rdma.Protected(testkit.Receive(t, "a request", requests))
		protection, binding := request.Protection(), request.Binding()
		if protection != c.want || len(binding) != c.binding ||
			!bytes.Equal(binding, request.PrivateData()) {
			t.Errorf("protection %q, binding %x, private data %x", protection, binding,
				request.PrivateData())
		}
	}
}

func TestPeersThatTLSDoesNotAdmitAreDroppedWithTheReason(t *testing.T) {
	e := newSecureEndpoint(t, Options{HandshakeTimeout: testkit.Patience}, false)
	honest := func() *tls.Config { return e.honest.DataClient(serverName) }
	changed := func(change func(*tls.Config)) *tls.Config {
		config := honest()
		change(config)
		return config
	}
	without := func(c *tls.Config) {
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &tls.Certificate{}, nil
		}
	}
	for i, c := range []struct {
		name   string
		client *tls.Config
		reason string
	}{
		{"TLS 1.2", changed(func(c *tls.Config) {
			c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
		}), "unsupported versions"},
		{"no certificate", changed(without), "didn't provide a certificate"},
		{"a certificate of somebody else's",
			credentialsOf(t, mutualtlstest.NewAuthority(t), "relay.test").DataClient(serverName),
			"unknown authority"},
		{"a forged certificate",
			credentialsOf(t, e.authority.Forge(), "relay.test").DataClient(serverName),
			"this side rejected the peer's certificate"},
		{"the control protocol", e.honest.Client(serverName), "unsupported application protocols"},
		{"no protocol", changed(func(c *tls.Config) { c.NextProtos = nil }),
			`did not negotiate the protocol "zc-relay-data"`},
	} {
		conn := e.dial()
		c.client.RootCAs, c.client.VerifyConnection = honest().RootCAs, nil
		client := tls.Client(conn, c.client)
		// In TLS 1.3 the client's handshake ends before the server has examined its certificate.
		_, _ = client.Write(e.validRequest())
		if answer, _ := io.ReadAll(client); len(answer) > 0 {
			t.Errorf("%s: answered by %x", c.name, answer)
		}
		e.expectDropped(1+i, status.Authentication, "TLS handshake", c.reason)
		e.expectSecureClient()
	}
}

// A server that is not the target learns nothing of what Connect would send it.
func TestConnectRejectsServersThatTLSDoesNotAdmit(t *testing.T) {
	e := newSecureEndpoint(t, Options{}, true)
	impostor := credentialsOf(t, mutualtlstest.NewAuthority(t), serverName)
	for _, c := range []struct {
		name   string
		server *tls.Config
		reason string
	}{
		{"another authority", impostor.DataServer(nil), "unknown authority"},
		{"another name", credentialsOf(t, e.authority, "other.test").DataServer(nil), "other.test"},
		{"the control protocol", credentialsOf(t, e.authority, serverName).Server(nil),
			"application protocol"},
		{"without TLS", nil, "one side speaks TLS and the other does not"},
	} {
		remote := e.responder(func(conn *net.TCPConn) { panic("MPA has arrived") }, c.server)
		config := e.config
		config.TLS = &rdma.ClientTLS{Config: e.honest.DataClient(serverName),
			PrivateData: func([]byte) []byte {
				t.Errorf("%s: asked for private data", c.name)
				return nil
			}}
		_, err := e.device.Connect(contextFor(t), remote, config)
		if !errors.Is(err, status.Authentication) || !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// responder plays a listener that speaks TLS or, without a configuration, answers as HTTP does.
// serve is called if anything arrives inside.
func (e *secureEndpoint) responder(serve func(*net.TCPConn), config *tls.Config) netip.AddrPort {
	e.Helper()
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(loopback, 0)))
	if err != nil {
		e.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := l.AcceptTCP()
		if err != nil {
			return
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
		if config == nil {
			_, _ = conn.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
			_, _ = io.Copy(io.Discard, conn)
			return
		}
		if n, _ := tls.Server(conn, config).Read(make([]byte, 1)); n > 0 {
			serve(conn)
		}
	}()
	e.Cleanup(func() { _ = l.Close(); <-done })
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// stalling is a connection that sends so many bytes of so many writes, and holds the rest back.
type stalling struct {
	net.Conn
	bytes, writes int
}

func (s *stalling) Write(b []byte) (int, error) {
	n := min(len(b), s.bytes)
	if s.writes--; s.writes < 0 {
		n = 0
	}
	s.bytes -= n
	if _, err := s.Conn.Write(b[:n]); err != nil {
		return 0, err
	}
	return len(b), nil
}

// stall begins a handshake, and leaves it after so many bytes and writes.
func (e *secureEndpoint) stall(bytes, writes int) {
	e.Helper()
	conn := e.dial()
	client := tls.Client(&stalling{conn, bytes, writes}, e.honest.DataClient(serverName))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = client.Read(make([]byte, 1))
	}()
	e.Cleanup(func() {
		_ = conn.Close()
		<-ended
	})
}

func TestAHandshakeOfTLSTakesNoLongerThanItMay(t *testing.T) {
	for name, sent := range map[string]struct{ bytes, writes int }{
		"after a byte": {1, 1}, "in a header": {4, 1}, "in the first message": {100, 1},
		"after the first message": {1 << 20, 1},
	} {
		t.Run(name, func(t *testing.T) {
			e := newSecureEndpoint(t, Options{HandshakeTimeout: 50 * time.Millisecond}, true)
			e.stall(sent.bytes, sent.writes)
			e.expectDropped(1, status.TimeOut)
		})
	}
}

func TestStallingHandshakesOfTLSLockNobodyOut(t *testing.T) {
	const limit = 4
	e := newSecureEndpoint(t, Options{HandshakeTimeout: testkit.Patience,
		MaxPendingHandshakes: limit}, true)
	for i := range 3 * limit {
		e.stall(1+i*20, 1)
		e.expectSecureClient()
	}
	// The last client was served while the latest of them waited.
	e.expectDropped(2*limit, status.ConnectionReset, "lost the connection")
}

func TestAHandshakeOfTLSSendsNoMoreThanItMay(t *testing.T) {
	const text = "it has sent more than 32768 bytes before it has proved its identity"
	e := newSecureEndpoint(t, Options{HandshakeTimeout: testkit.Patience}, true)
	client := e.honest.DataClient(serverName)
	chain := client.Certificates[0]
	for size := 0; size < 64<<10; size += len(chain.Certificate[0]) {
		chain.Certificate = append(chain.Certificate, chain.Certificate[0])
	}
	client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return &chain, nil
	}
	secured := tls.Client(e.dial(), client)
	_, _ = secured.Write(e.validRequest())
	if answer, _ := io.ReadAll(secured); len(answer) > 0 {
		t.Errorf("answered by %x", answer)
	}
	e.expectDropped(1, status.Authentication, text)
	e.expectSecureClient()

	server := credentialsOf(t, e.authority, serverName).DataServer(nil)
	chain.PrivateKey = server.Certificates[0].PrivateKey
	chain.Certificate[0] = server.Certificates[0].Certificate[0]
	server.Certificates = []tls.Certificate{chain}
	config := e.config
	config.TLS = &rdma.ClientTLS{Config: e.honest.DataClient(serverName)}
	_, err := e.device.Connect(contextFor(t), e.responder(func(*net.TCPConn) {}, server), config)
	if !errors.Is(err, status.Authentication) || !strings.Contains(err.Error(), text) {
		t.Errorf("Connect: %v", err)
	}
}
