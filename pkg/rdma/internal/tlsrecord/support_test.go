// SPDX-License-Identifier: Apache-2.0

package tlsrecord

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/network/networktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// suiteNames holds the names of the suites for OpenSSL.
var suiteNames = map[uint16]string{
	tls.TLS_AES_128_GCM_SHA256:       "TLS_AES_128_GCM_SHA256",
	tls.TLS_AES_256_GCM_SHA384:       "TLS_AES_256_GCM_SHA384",
	tls.TLS_CHACHA20_POLY1305_SHA256: "TLS_CHACHA20_POLY1305_SHA256",
}

// forSuites runs a test for each suite.
func forSuites(t *testing.T, test func(t *testing.T, suite uint16)) {
	for suite, name := range suiteNames {
		t.Run(name, func(t *testing.T) { test(t, suite) })
	}
}

func unhex(text string) []byte {
	b, err := hex.DecodeString(strings.Join(strings.Fields(text), ""))
	if err != nil {
		panic(err)
	}
	return b
}

// newSessions returns the sessions of both ends of a connection. Their secrets differ by direction.
func newSessions(t testing.TB, suite uint16) (client, server *Session) {
	t.Helper()
	return newSessionsOf(t, suite)
}

// newSessionsOf is newSessions for tests of any kind.
func newSessionsOf(t interface{ Fatal(...any) }, suite uint16) (client, server *Session) {
	length := suites[suite].hash().Size()
	secret := func(b byte) []byte { return slices.Repeat([]byte{b}, length) }
	client, err := newSession(suite, true, secret(1), secret(2))
	if err != nil {
		t.Fatal(err)
	}
	if server, err = newSession(suite, false, secret(2), secret(1)); err != nil {
		t.Fatal(err)
	}
	return client, server
}

// sealed returns a record of application data, or nil if none can be sealed.
func (s *Session) sealed(data string) []byte {
	record := make([]byte, len(data)+Overhead)
	copy(record[HeaderBytes:], data)
	if n := s.Seal(record, len(data)); n > 0 {
		return record[:n]
	}
	return nil
}

// sealAny returns a record with anything inside, also what Seal never makes. inner ends with the
// type and the padding.
func (s *Session) sealAny(inner ...byte) []byte {
	length := len(inner) + tagBytes
	record := []byte{typeApplicationData, legacyVersion >> 8, legacyVersion & 0xff, 0, 0}
	binary.BigEndian.PutUint16(record[3:], uint16(length))
	return s.out.aead.Seal(record, s.out.nextNonce(), inner, slices.Clone(record))
}

// credentials returns configurations of both ends that trust each other.
func credentials(t testing.TB) (client, server *tls.Config) {
	t.Helper()
	authority := mutualtlstest.NewAuthority(t)
	load := func(name string) *mutualtls.Credentials {
		c, err := mutualtls.Load(authority.Write(t.TempDir(), []string{name}), nil)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	return load("relay.test").Client("target.test"), load("target.test").Server(nil)
}

// connect returns both ends of a connection of a network in memory.
func connect(t testing.TB, config networktest.Config) (client, server network.Stream) {
	t.Helper()
	n := networktest.New(config)
	at := netip.MustParseAddr("10.0.0.1")
	return dial(t, n.Host(netip.MustParseAddr("10.0.0.2")), n.Host(at), at)
}

// connectTCP returns both ends of a connection of the kernel.
func connectTCP(t testing.TB) (client, server network.Stream) {
	t.Helper()
	return dial(t, network.Kernel{}, network.Kernel{}, testkit.Address(t))
}

func dial(t testing.TB, from, to network.Network, at netip.Addr) (client, server network.Stream) {
	t.Helper()
	listener, err := to.Listen(t.Context(), netip.AddrPortFrom(at, 0))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if client, err = from.Dial(t.Context(), netip.Addr{}, listener.Address()); err != nil {
		t.Fatal(err)
	}
	if server, err = listener.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.Close()
		_ = server.Close()
	})
	return client, server
}

// result is what Client or Server returns.
type result struct {
	stream *Stream
	err    error
}

// inBackground does a handshake in a goroutine.
func inBackground(
	ctx context.Context, stream network.Stream, config *tls.Config,
	side func(context.Context, network.Stream, *tls.Config) (*Stream, error),
) <-chan result {
	done := make(chan result, 1)
	go func() {
		s, err := side(ctx, stream, config)
		done <- result{s, err}
	}()
	return done
}

// secure does the handshake at both ends.
func secure(
	t testing.TB, client, server network.Stream, clientConfig, serverConfig *tls.Config,
) (atClient, atServer *Stream) {
	t.Helper()
	ctx := testkit.Context(t)
	accepting := inBackground(ctx, server, serverConfig, Server)
	atClient, err := Client(ctx, client, clientConfig)
	if err != nil {
		t.Fatal(err)
	}
	accepted := testkit.Receive(t, "the server's handshake is over", accepting)
	if accepted.err != nil {
		t.Fatal(accepted.err)
	}
	return atClient, accepted.stream
}

// securePair returns a new connection of a network in memory after its handshake.
func securePair(t testing.TB) (atClient, atServer *Stream) {
	t.Helper()
	client, server := connect(t, networktest.Config{})
	clientConfig, serverConfig := credentials(t)
	return secure(t, client, server, clientConfig, serverConfig)
}
