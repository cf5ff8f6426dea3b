// SPDX-License-Identifier: Apache-2.0

package target_test

import (
	"crypto/rand"
	"crypto/tls"
	"errors"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/target"
)

// secureRelay is a relay that wants TLS, or does not, on its data connections.
type secureRelay struct {
	*testing.T
	credentials *mutualtls.Credentials
	requester   *controlmsg.Requester
	binder      *controlmsg.DataBinder
	device      rdma.Device
	config      rdma.ConnectionConfig
	open        int // connections
}

// newSecureRelay returns a relay with a session of one queue.
func newSecureRelay(
	t *testing.T, s *target.Target, credentials *mutualtls.Credentials,
	wants controlmsg.DataSecurity,
) *secureRelay {
	t.Helper()
	r := &secureRelay{T: t, credentials: credentials}
	transport, err := controlmsg.NewTLSClient(t.Context(), dial(t, s.Address()),
		credentials.Client("target"), controlmsg.TCPConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if r.binder, err = controlmsg.NewDataBinder(transport); err != nil {
		t.Fatal(err)
	}
	r.requester = controlmsg.NewRequester(transport, controlmsg.EndpointConfig{
		Role: controlmsg.RoleRelay, Timeout: testkit.Patience, KeepAlive: quiet,
		DataSecurity: wants})
	t.Cleanup(func() { r.requester.Close(nil) })
	if _, err := r.requester.Greet(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := openVolume(t, r.requester, "disk"); err != nil {
		t.Fatal(err)
	}
	m := configuration(1, 4)
	_, _ = rand.Read(m.ClientInstance[:]) // never fails
	if _, err := r.requester.Call(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	r.openDevice()
	return r
}

// openDevice opens what the relay connects with.
func (r *secureRelay) openDevice() {
	r.Helper()
	var err error
	if r.device, err = iwarp.New(iwarp.Options{}).Open(loopback.Addr()); err != nil {
		r.Fatal(err)
	}
	domain, err := r.device.NewProtectionDomain()
	if err != nil {
		r.Fatal(err)
	}
	queue, err := r.device.NewCompletionQueue(16)
	if err != nil {
		r.Fatal(err)
	}
	r.config = rdma.ConnectionConfig{Domain: domain, Queue: queue, SendRequests: 4,
		ReceiveRequests: 4, InboundReads: 4, OutboundReads: 4}
	r.Cleanup(func() {
		if err := errors.Join(queue.Close(), domain.Close(), r.device.Close()); err != nil {
			r.Error(err)
		}
	})
}

// announce returns the token of a connection, and where to connect to.
func (r *secureRelay) announce(role iomsg.ConnectionRole) ([16]byte, netip.AddrPort) {
	r.Helper()
	reply, err := controlmsg.Call(r.Context(), r.requester, &controlmsg.CreateRDMAConnection{
		Role: role, Source: loopback.Addr()})
	if err != nil {
		r.Fatal(err)
	}
	return reply.Token, netip.AddrPortFrom(loopback.Addr(), reply.Address.Port())
}

// connect connects with the private data that a function makes, with TLS unless private is nil.
// Without TLS, it sends the token alone.
func (r *secureRelay) connect(
	to netip.AddrPort, token [16]byte, private func(binding []byte) controlmsg.RDMAPrivateData,
) error {
	r.Helper()
	config := r.config
	config.PrivateData = controlmsg.RDMAPrivateData{Token: token}.Append(nil)
	if private != nil {
		config.TLS = &rdma.ClientTLS{Config: r.credentials.DataClient("target"),
			PrivateData: func(binding []byte) []byte { return private(binding).Append(nil) }}
	}
	connection, err := r.device.Connect(testkit.Context(r.T), to, config)
	if err != nil {
		return err
	}
	r.open++
	r.Cleanup(func() {
		connection.Close()
		r.awaitDisconnected()
	})
	return nil
}

// awaitDisconnected waits until all connections have ended.
func (r *secureRelay) awaitDisconnected() {
	r.Helper()
	testkit.Eventually(r.T, "the connections have ended", func() bool {
		r.poll()
		return r.open == 0
	})
}

func (r *secureRelay) poll() {
	var completions [16]rdma.Completion
	for _, c := range completions[:r.config.Queue.Poll(completions[:])] {
		if c.Opcode == rdma.OpDisconnected {
			r.open--
		}
	}
}

// bind makes the private data that the relay is to send with a token.
func (r *secureRelay) bind(token [16]byte) func([]byte) controlmsg.RDMAPrivateData {
	return func(binding []byte) controlmsg.RDMAPrivateData { return r.binder.Bind(token, binding) }
}

// secureTarget returns a target that wants TLS for data, and what it logs.
func secureTarget(
	t *testing.T, authority *mutualtlstest.Authority, wants controlmsg.DataSecurity,
) (*target.Target, *observer.ObservedLogs) {
	t.Helper()
	return secureTargetOf(t, credentials(t, authority, "target"), wants)
}

func secureTargetOf(
	t *testing.T, own *mutualtls.Credentials, wants controlmsg.DataSecurity,
) (*target.Target, *observer.ObservedLogs) {
	t.Helper()
	core, logged := observer.New(zap.InfoLevel)
	log := zap.New(core)
	return startTarget(t, func(c *target.Config) {
		c.TLS, c.DataSecurity = own, wants
		c.RDMA, c.Logger = iwarp.New(iwarp.Options{Logger: log}), log
	}), logged
}

// expectReason waits until the latest rejection is for a reason.
func expectReason(t *testing.T, logged *observer.ObservedLogs, message, reason string) {
	t.Helper()
	var all []string
	testkit.Eventually(t, "the target logs "+reason, func() bool {
		all = nil
		for _, e := range logged.FilterMessage(message).All() {
			for _, f := range e.Context {
				if err, is := f.Interface.(error); is {
					all = append(all, err.Error())
				}
			}
		}
		return len(all) > 0 && strings.Contains(all[len(all)-1], reason)
	})
}

// TestATokenCountsOnATLSConnectionOfItsSessionOnly has others, who have got hold of the token of an
// honest relay, connect before that one does.
func TestATokenCountsOnATLSConnectionOfItsSessionOnly(t *testing.T) {
	const rejected, dropped = "rejected an RDMA connection", "iwarp client dropped"
	const another = "the TLS connection does not belong to the session's control connection"
	for _, wants := range []controlmsg.DataSecurity{
		controlmsg.DataSecurityTLS, controlmsg.DataSecurityRequired,
	} {
		t.Run(wants.String(), func(t *testing.T) {
			authority := mutualtlstest.NewAuthority(t)
			s, logged := secureTarget(t, authority, wants)
			own := credentials(t, authority, "relay")
			honest := newSecureRelay(t, s, own, wants)
			others := map[string]*secureRelay{
				"another session of the same relay": newSecureRelay(t, s, own, wants),
				"a session of another relay": newSecureRelay(t, s,
					credentials(t, authority, "other"), wants),
			}
			token, address := honest.announce(iomsg.ControlConnection)
			for name, other := range others {
				if err := other.connect(address, token, other.bind(token)); !errors.Is(err,
					status.ConnectionAborted) {
					t.Errorf("%s connects: %v", name, err)
				}
				expectReason(t, logged, rejected, another)
			}
			stranger := others["a session of another relay"]
			for name, private := range map[string]func([]byte) controlmsg.RDMAPrivateData{
				"no proof": func([]byte) controlmsg.RDMAPrivateData {
					return controlmsg.RDMAPrivateData{Token: token}
				},
				// As if it had been recorded on another connection of the session's.
				"the proof of another connection": func(binding []byte) controlmsg.RDMAPrivateData {
					foreign := append([]byte{}, binding...)
					foreign[0]++
					return honest.binder.Bind(token, foreign)
				},
				"the proof of another token": func(binding []byte) controlmsg.RDMAPrivateData {
					d := honest.binder.Bind([16]byte{1}, binding)
					d.Token = token
					return d
				},
			} {
				if err := stranger.connect(address, token, private); !errors.Is(err,
					status.ConnectionAborted) {
					t.Errorf("with %s: %v", name, err)
				}
				expectReason(t, logged, rejected, another)
			}
			err := stranger.connect(address, token, nil)
			if err == nil {
				t.Error("connected in plain text")
			}
			if wants == controlmsg.DataSecurityRequired {
				expectReason(t, logged, dropped, "does not use TLS, which this side requires")
			} else {
				expectReason(t, logged, rejected,
					"the connection does not use TLS, its session does")
			}
			if err := honest.connect(address, token, honest.bind(token)); err != nil {
				t.Errorf("the honest relay does not connect: %v", err)
			}
			// The sessions continue.
			token, address = honest.announce(iomsg.DataConnection)
			if err := honest.connect(address, token, honest.bind(token)); err != nil {
				t.Errorf("the honest relay does not connect again: %v", err)
			}
			stranger.announce(iomsg.ControlConnection)
		})
	}
}

// A connection with TLS is not taken for one of a session that was agreed on without.
func TestASessionWithoutTLSHasNoConnectionWithIt(t *testing.T) {
	authority := mutualtlstest.NewAuthority(t)
	s, logged := secureTarget(t, authority, controlmsg.DataSecurityTLS)
	r := newSecureRelay(t, s, credentials(t, authority, "relay"), controlmsg.DataSecurityOff)
	token, address := r.announce(iomsg.ControlConnection)
	if err := r.connect(address, token, r.bind(token)); !errors.Is(err, status.ConnectionAborted) {
		t.Errorf("connected with TLS: %v", err)
	}
	expectReason(t, logged, "rejected an RDMA connection",
		"the connection uses TLS, its session does not")
	if err := r.connect(address, token, nil); err != nil {
		t.Errorf("in plain text, as agreed: %v", err)
	}
}

// A relay may not find a target that requires TLS without it, whatever it says.
func TestATargetThatRequiresTLSServesNobodyWithout(t *testing.T) {
	authority := mutualtlstest.NewAuthority(t)
	s, _ := secureTarget(t, authority, controlmsg.DataSecurityRequired)
	transport, err := controlmsg.NewTLSClient(t.Context(), dial(t, s.Address()),
		credentials(t, authority, "relay").Client("target"), controlmsg.TCPConfig{})
	if err != nil {
		t.Fatal(err)
	}
	r := controlmsg.NewRequester(transport, controlmsg.EndpointConfig{Role: controlmsg.RoleRelay,
		Timeout: testkit.Patience, KeepAlive: quiet, DataSecurity: controlmsg.DataSecurityOff})
	defer r.Close(nil)
	if _, err := r.Greet(t.Context()); err == nil || !strings.Contains(err.Error(),
		"security.data is off at the relay and required at the target") {
		t.Errorf("hello: %v", err)
	}
}

// The listeners of control and data share certificates, and do not serve each other's clients.
func TestControlAndDataAreDifferentProtocols(t *testing.T) {
	authority := mutualtlstest.NewAuthority(t)
	s, _ := secureTarget(t, authority, controlmsg.DataSecurityTLS)
	own := credentials(t, authority, "relay")
	r := newSecureRelay(t, s, own, controlmsg.DataSecurityTLS)
	_, data := r.announce(iomsg.ControlConnection)
	for name, c := range map[string]struct {
		to     netip.AddrPort
		config *tls.Config
	}{
		"control at the listener of data": {data, own.Client("target")},
		"data at the listener of control": {s.Address(), own.DataClient("target")},
	} {
		if _, err := controlmsg.NewTLSClient(t.Context(), dial(t, c.to), c.config,
			controlmsg.TCPConfig{}); !errors.Is(err, status.Authentication) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestADataConnectionUsesARenewedCertificate(t *testing.T) {
	authority := mutualtlstest.NewAuthority(t)
	directory := t.TempDir()
	own, err := mutualtls.Load(authority.Write(directory, []string{"target"}), nil)
	if err != nil {
		t.Fatal(err)
	}
	s, _ := secureTargetOf(t, own, controlmsg.DataSecurityRequired)
	r := newSecureRelay(t, s, credentials(t, authority, "relay"), controlmsg.DataSecurityRequired)
	_, data := r.announce(iomsg.ControlConnection)
	serial := func() string {
		client := tls.Client(dial(t, data), r.credentials.DataClient("target"))
		if err := client.Handshake(); err != nil {
			t.Fatal(err)
		}
		return client.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	before := serial()
	if again := serial(); again != before {
		t.Errorf("certificate %s, and then %s", before, again)
	}
	authority.Write(directory, []string{"target"})
	if after := serial(); after == before {
		t.Error("the next connection uses the former certificate")
	}
}

// The data connections of a relay that is turned out end with its session.
func TestARelayThatIsNoLongerAllowedLosesItsDataConnections(t *testing.T) {
	authority := mutualtlstest.NewAuthority(t)
	own := authority.Write(t.TempDir(), []string{"target"})
	own.Revoked = filepath.Join(t.TempDir(), "revoked.pem")
	others := authority.Write(t.TempDir(), []string{"nobody"})
	for name, lose := range map[string]func(s *target.Target, relay mutualtls.Files){
		"its name": func(s *target.Target, _ mutualtls.Files) {
			s.SetAllowedNames(mutualtlstest.Names("honest"))
		},
		"its certificate": func(s *target.Target, relay mutualtls.Files) {
			authority.Revoke(relay.Certificate, own.Revoked, time.Now().Add(time.Hour))
			s.SetAllowedNames(nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			authority.Revoke(others.Certificate, own.Revoked, time.Now().Add(time.Hour))
			ofTarget, err := mutualtls.Load(own, nil)
			if err != nil {
				t.Fatal(err)
			}
			s, logged := secureTargetOf(t, ofTarget, controlmsg.DataSecurityRequired)
			files := authority.Write(t.TempDir(), []string{"relay"})
			ofRelay, err := mutualtls.Load(files, nil)
			if err != nil {
				t.Fatal(err)
			}
			loser := newSecureRelay(t, s, ofRelay, controlmsg.DataSecurityRequired)
			honest := newSecureRelay(t, s, credentials(t, authority, "honest"),
				controlmsg.DataSecurityRequired)
			var token [16]byte
			var address netip.AddrPort
			for _, r := range []*secureRelay{loser, honest} {
				for role := range iomsg.ConnectionRoleCount {
					token, address = r.announce(role)
					if err := r.connect(address, token, r.bind(token)); err != nil {
						t.Fatal(err)
					}
				}
			}
			lose(s, files)
			testkit.Receive(t, "the end of the session", loser.requester.Done())
			loser.awaitDisconnected()
			// What it still knows does not help.
			if err := loser.connect(address, token, loser.bind(token)); err == nil {
				t.Error("connected again")
			}
			expectReason(t, logged, "iwarp client dropped", "TLS handshake")
			if honest.poll(); honest.open != 2 || honest.requester.Err() != nil {
				t.Errorf("the other relay has %d connections left: %v", honest.open,
					honest.requester.Err())
			}
		})
	}
}
