// SPDX-License-Identifier: Apache-2.0

package controlmsg_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/controlmsgtest"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func credentials(t *testing.T, files mutualtls.Files) *mutualtls.Credentials {
	t.Helper()
	c, err := mutualtls.Load(files, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// identities returns the files of a relay and a target that trust each other.
func identities(t *testing.T) (relay, target mutualtls.Files) {
	authority := mutualtlstest.NewAuthority(t)
	return authority.Write(t.TempDir(), []string{"relay.test"}), authority.Write(t.TempDir(),
		[]string{"target.test", "127.0.0.1"})
}

// secured is the result of one side of a handshake.
type secured struct {
	transport controlmsg.Transport
	err       error
}

func accept(t *testing.T, conn *net.TCPConn, config *tls.Config) chan secured {
	done := make(chan secured, 1)
	ctx := generous(t)
	go func() {
		transport, err := controlmsg.NewTLSServer(ctx, conn, config,
			controlmsg.TCPConfig{CloseTimeout: 5 * time.Second})
		done <- secured{transport, err}
	}()
	return done
}

// secure returns both ends of a connection after its handshake.
func secure(t *testing.T) (a, b controlmsg.Transport) {
	t.Helper()
	relay, target := identities(t)
	near, far := connect(t)
	accepted := accept(t, far, credentials(t, target).Server(nil))
	a, err := controlmsg.NewTLSClient(generous(t), near,
		credentials(t, relay).Client("target.test"), controlmsg.TCPConfig{})
	s := <-accepted
	if err != nil || s.err != nil {
		t.Fatal(err, s.err)
	}
	return a, s.transport
}

func TestASessionRunsOverTLS(t *testing.T) {
	a, b := secure(t)
	if !strings.Contains(a.RemoteName(), `("target.test")`) || !strings.Contains(b.RemoteName(),
		`("relay.test")`) {
		t.Errorf("the peers are %s and %s", a.RemoteName(), b.RemoteName())
	}
	controlmsgtest.ServeOn(t, b, watching(controlmsg.RoleTarget), acceptAll())
	r := newRequester(t, watching(controlmsg.RoleRelay), a)
	mustCall(t, r, session(4)...)
}

func TestTheReasonOfCloseArrivesOverTLSDespiteUnreadMessages(t *testing.T) {
	a, b := secure(t)
	for range 100 {
		if err := a.Send(generous(t), []byte("not read by the peer")); err != nil {
			t.Fatal(err)
		}
	}
	closed := make(chan error)
	ctx := generous(t)
	go func() {
		err := b.Send(ctx, []byte("reason"))
		closed <- errors.Join(err, b.Close())
	}()
	message, err := a.Receive(generous(t))
	if err != nil || string(message) != "reason" {
		t.Errorf("Receive = %q, %v", message, err)
	}
	_, err = a.Receive(generous(t))
	checkError(t, "Receive", err, status.NotConnected, "closed")
	if err := errors.Join(a.Close(), <-closed); err != nil {
		t.Error(err)
	}
}

func TestContextsEndWaitsOnTLS(t *testing.T) {
	a, b := secure(t)
	defer b.Abort()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := a.Receive(ctx)
	checkError(t, "late Receive", err, status.TimeOut, "receive message from")
	ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	for err = nil; err == nil; {
		err = a.Send(ctx, make([]byte, controlmsg.DefaultMaxMessageSize))
	}
	checkError(t, "Send to a peer that does not read", err, status.TimeOut, "send message to")
	a.Abort()
}

func TestTLSRejectsUntrustedPeers(t *testing.T) {
	ours, theirs := mutualtlstest.NewAuthority(t), mutualtlstest.NewAuthority(t)
	good := []string{"target.test"}
	long := strings.Repeat("x", 200)
	cases := []struct {
		name           string
		relay, target  mutualtls.Files
		allowed        []string
		relaySees      string
		targetSees     string
		relayRejects   bool     // otherwise the target does
		noCertificate  bool     // of the relay
		protocols      []string // that the relay offers; nil means the right one
		earlierVersion bool
	}{
		{name: "relay of another authority",
			relay:     mixed(theirs.Write(t.TempDir(), good), ours.Write(t.TempDir(), good)),
			target:    ours.Write(t.TempDir(), good),
			relaySees: "unknown certificate authority", targetSees: "signed by unknown authority (none of this side's tls.ca has signed it)"},
		{name: "relay with an expired certificate",
			relay:     ours.Write(t.TempDir(), good, mutualtlstest.Expired),
			target:    ours.Write(t.TempDir(), good),
			relaySees: "expired certificate", targetSees: "(renew it, or correct this machine's clock)"},
		{name: "relay without a certificate",
			relay: ours.Write(t.TempDir(), good), target: ours.Write(t.TempDir(), good),
			noCertificate: true,
			relaySees:     "certificate required", targetSees: "didn't provide a certificate"},
		{name: "relay with a name that is not allowed",
			relay: ours.Write(t.TempDir(), []string{"relay.test"}), target: ours.Write(t.TempDir(),
				good), allowed: []string{"other.test"},
			relaySees:  "bad certificate",
			targetSees: `is for ["dns:relay.test"], none of which is an allowed name`},
		{name: "relay of another protocol",
			relay: ours.Write(t.TempDir(), good), target: ours.Write(t.TempDir(), good),
			protocols: []string{"h2"},
			relaySees: "no application protocol", targetSees: "application protocol"},
		{name: "relay of many protocols",
			relay: ours.Write(t.TempDir(), good), target: ours.Write(t.TempDir(), good),
			protocols: slices.Repeat([]string{strings.Repeat("x", 255)}, 100),
			relaySees: "no application protocol", targetSees: "application protocol"},
		{name: "relay with many names",
			relay:  ours.Write(t.TempDir(), slices.Repeat([]string{long + ".test"}, 100)),
			target: ours.Write(t.TempDir(), good), allowed: []string{"other.test"},
			relaySees: "bad certificate", targetSees: "and 92 more, none of which is an allowed"},
		{name: "relay with a long name that nobody has signed",
			relay: mixed(theirs.Write(t.TempDir(), []string{long + ".test"}),
				ours.Write(t.TempDir(), good)),
			target:    ours.Write(t.TempDir(), good),
			relaySees: "unknown certificate authority", targetSees: `x"...): x509`},
		{name: "relay of an earlier version of TLS",
			relay: ours.Write(t.TempDir(), good), target: ours.Write(t.TempDir(), good),
			earlierVersion: true,
			relaySees:      "protocol version not supported", targetSees: "unsupported versions"},
		{name: "target of another authority",
			relay: ours.Write(t.TempDir(), good), target: mixed(theirs.Write(t.TempDir(), good),
				ours.Write(t.TempDir(), good)),
			relaySees:  `rejected its certificate ("target.test"): x509: certificate signed by unknown authority`,
			targetSees: "bad certificate", relayRejects: true},
		{name: "target with an expired certificate",
			relay: ours.Write(t.TempDir(), good), target: ours.Write(t.TempDir(), good,
				mutualtlstest.Expired),
			relaySees: "certificate has expired", targetSees: "bad certificate",
			relayRejects: true},
		{name: "target of another name",
			relay: ours.Write(t.TempDir(), good), target: ours.Write(t.TempDir(),
				[]string{"impostor.test"}),
			relaySees:  "certificate is valid for impostor.test, not target.test (the relay's tls_server_name",
			targetSees: "bad certificate", relayRejects: true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			near, far := connect(t)
			accepted := accept(t, far,
				credentials(t, c.target).Server(mutualtlstest.Names(c.allowed...)))
			config := credentials(t, c.relay).Client("target.test")
			if c.noCertificate {
				config.Certificates, config.GetClientCertificate = nil, nil
			}
			if c.protocols != nil {
				config.NextProtos = c.protocols
			}
			if c.earlierVersion {
				config.MinVersion, config.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
			}
			transport, err := controlmsg.NewTLSClient(generous(t), near, config,
				controlmsg.TCPConfig{})
			if err == nil && !c.relayRejects {
				// In TLS 1.3 the client's handshake is over before the server rejects it.
				r := controlmsg.NewRequester(transport, asRelay)
				_, err = r.Greet(generous(t))
				r.Close(nil)
			}
			checkError(t, "the relay's error", err, status.Authentication, c.relaySees)
			s := <-accepted
			checkError(t, "the target's error", s.err, status.Authentication, c.targetSees)
			testkit.CheckBounded(t, s.err)
		})
	}
}

// mixed returns the certificate of own and the authorities of peer.
func mixed(own, peer mutualtls.Files) mutualtls.Files {
	own.CA = peer.CA
	return own
}

func TestARelayWithoutTLSLearnsThatTheTargetSpeaksTLS(t *testing.T) {
	_, target := identities(t)
	near, far := connect(t)
	accepted := accept(t, far, credentials(t, target).Server(nil))
	r := controlmsg.NewRequester(controlmsg.NewTCPTransport(near, controlmsg.TCPConfig{}), asRelay)
	_, err := r.Greet(generous(t))
	r.Close(nil)
	checkError(t, "Greet", err, status.Authentication, "one side speaks TLS and the other does not")
	s := <-accepted
	checkError(t, "NewTLSServer", s.err, status.Authentication,
		"one side speaks TLS and the other does not")
}

func TestARelayWithTLSLearnsThatTheTargetSpeaksPlainText(t *testing.T) {
	relay, _ := identities(t)
	near, far := connect(t)
	s := controlmsgtest.ServeOn(t, controlmsg.NewTCPTransport(far, controlmsg.TCPConfig{}),
		asTarget, acceptAll())
	_, err := controlmsg.NewTLSClient(generous(t), near,
		credentials(t, relay).Client("target.test"), controlmsg.TCPConfig{})
	checkError(t, "NewTLSClient", err, status.Authentication,
		"one side speaks TLS and the other does not")
	<-s.Done()
	checkError(t, "the target's Err", s.Err(), status.Authentication,
		"the peer speaks TLS, and this side does not")
}

func TestAHandshakeTimesOut(t *testing.T) {
	_, target := identities(t)
	_, far := connect(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := controlmsg.NewTLSServer(ctx, far, credentials(t, target).Server(nil),
		controlmsg.TCPConfig{})
	checkError(t, "NewTLSServer", err, status.TimeOut, "TLS handshake with 127.0.0.1")
}

func TestAHandshakeIsBounded(t *testing.T) {
	authority := mutualtlstest.NewAuthority(t)
	target := authority.Write(t.TempDir(), []string{"target.test"})
	for names, accepted := range map[int]bool{200: true, 4000: false} {
		var all []string
		for i := range names {
			all = append(all, fmt.Sprintf("name-%d.test", i))
		}
		relay := authority.Write(t.TempDir(), all)
		near, far := connect(t)
		ended := accept(t, far, credentials(t, target).Server(nil))
		client, err := controlmsg.NewTLSClient(generous(t), near,
			credentials(t, relay).Client("target.test"), controlmsg.TCPConfig{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Abort)
		if err := (<-ended).err; accepted && err != nil {
			t.Errorf("a certificate with %d names: %v", names, err)
		} else if !accepted {
			checkError(t, "NewTLSServer", err, status.Authentication, "has sent more than 32768 bytes")
		}
	}
}

func TestADisconnectDuringTheHandshakeIsNotAnAuthenticationError(t *testing.T) {
	_, target := identities(t)
	near, far := connect(t)
	if err := near.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := controlmsg.NewTLSServer(generous(t), far, credentials(t, target).Server(nil),
		controlmsg.TCPConfig{})
	checkError(t, "NewTLSServer", err, status.ConnectionReset, "lost the connection")
}
