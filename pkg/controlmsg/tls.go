// SPDX-License-Identifier: Apache-2.0

package controlmsg

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"github.com/zc-relay/zc-relay/internal/printable"
	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// NewTLSClient performs the connecting side of a TLS handshake over conn and returns a transport
// secured by it. It owns conn from now on, even if it fails. If ctx ends, the handshake fails.
//
// In TLS 1.3 the handshake completes on this side before the peer has examined its certificate. A
// peer that rejects the certificate makes the next Send or Receive fail with status.Authentication.
func NewTLSClient(
	ctx context.Context, conn network.Stream, secure *tls.Config, config TCPConfig,
) (Transport, error) {
	t := newTCPTransport(conn, config)
	if err := t.handshake(ctx, tls.Client, secure); err != nil {
		return nil, err
	}
	return t, nil
}

// NewTLSServer is NewTLSClient for the accepting side. A peer that does not speak TLS gets an Error
// in plain text.
func NewTLSServer(
	ctx context.Context, conn network.Stream, secure *tls.Config, config TCPConfig,
) (Transport, error) {
	t := newTCPTransport(conn, config)
	if err := t.handshake(ctx, tls.Server, secure); err != nil {
		return nil, err
	}
	return t, nil
}

// VerifiedChains returns the chains that verify the certificate of the peer, which each begins
// with, of a transport that NewTLSClient or NewTLSServer has returned. It returns nil for others.
func VerifiedChains(transport Transport) [][]*x509.Certificate {
	t, ok := transport.(*tcpTransport)
	if !ok {
		return nil
	}
	secured, ok := t.stream.(*tls.Conn)
	if !ok {
		return nil
	}
	return secured.ConnectionState().VerifiedChains
}

// maxHandshake bounds what a peer may send before it has proved its identity, in bytes: anybody can
// begin any number of handshakes. A chain of three certificates with keys of RSA-4096 has a fifth.
const maxHandshake = 32 << 10

// handshakeReader is a connection that fails if the peer sends more than maxHandshake until the
// handshake is done. Otherwise TLS would keep as much as a certificate may have, which is eight
// times that.
type handshakeReader struct {
	stream
	done bool
	read int
}

var errLongHandshake = fmt.Errorf("it has sent more than %d bytes before it has proved its "+
	"identity: give its certificate a shorter chain, or fewer names", maxHandshake)

// Read reads from the connection.
func (r *handshakeReader) Read(b []byte) (int, error) {
	if r.done {
		return r.stream.Read(b)
	}
	if r.read >= maxHandshake {
		return 0, errLongHandshake
	}
	n, err := r.stream.Read(b[:min(len(b), maxHandshake-r.read)])
	r.read += n
	return n, err
}

// handshake secures the transport, or closes it and fails.
func (t *tcpTransport) handshake(
	ctx context.Context, secure func(net.Conn, *tls.Config) *tls.Conn, config *tls.Config,
) error {
	bounded := &handshakeReader{stream: t.stream}
	secured := secure(bounded, config)
	err := secured.HandshakeContext(ctx)
	bounded.done = true
	if err == nil {
		t.stream = secured
		t.name += describeIdentity(secured.ConnectionState().PeerCertificates)
		return nil
	}
	reason := t.handshakeError(ctx, err)
	if record, ok := errors.AsType[tls.RecordHeaderError](err); ok && record.RecordHeader[0] == 0 {
		// TLS never begins with 0; a message of this protocol does.
		t.sendPlainTextError(ctx, reason)
	}
	// Close gracefully, so that the peer receives the alert with the reason.
	return errors.Join(reason, t.Close())
}

// sendPlainTextError sends the reason to a peer that expects messages. If that fails, the peer only
// misses an explanation.
func (t *tcpTransport) sendPlainTextError(ctx context.Context, reason error) {
	ctx, cancel := context.WithTimeout(ctx, farewellTimeout)
	defer cancel()
	farewell, err := Encode(&Envelope{Message: report(reason, PhaseConnect)})
	if err == nil {
		_ = t.Send(ctx, farewell)
	}
}

func (t *tcpTransport) handshakeError(ctx context.Context, err error) error {
	text := "TLS handshake with " + t.RemoteName()
	if ctx.Err() != nil {
		return waitError(ctx, text)
	}
	if record, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		if other := foreign(record.RecordHeader[:]); other != nil {
			return fmt.Errorf("%s: %w", text, other)
		}
		return status.Errorf(status.Authentication,
			"%s: one side speaks TLS and the other does not: "+
				"set up TLS on both sides or on neither", text)
	}
	if isAlert(err) {
		return status.Errorf(status.Authentication, "%s: %w", text, explainAlert(err))
	}
	if rejected, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return status.Errorf(status.Authentication, "%s: rejected its certificate%s: %w%s",
			text, describeIdentity(rejected.UnverifiedCertificates),
			printable.Error(rejected.Err), remedy(rejected.Err))
	}
	if isConnectionLoss(err) {
		return status.Errorf(status.ConnectionReset,
			"%s: lost the connection (does the peer speak TLS?): %w", text, err)
	}
	return status.Errorf(status.Authentication, "%s: %w", text, printable.Error(err))
}

// remedy says what to do about a certificate that this side has rejected.
func remedy(err error) string {
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return " (none of this side's tls.ca has signed it)"
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return " (the relay's tls_server_name is the name to expect)"
	}
	invalid, ok := errors.AsType[x509.CertificateInvalidError](err)
	switch {
	case ok && invalid.Reason == x509.Expired:
		return " (renew it, or correct this machine's clock)"
	case ok && invalid.Reason == x509.IncompatibleUsage:
		return " (it needs the extended key usage serverAuth for a target, clientAuth for a relay)"
	}
	return ""
}

// isConnectionLoss reports whether a handshake failed because of the network, or because the peer
// disconnected.
func isConnectionLoss(err error) bool {
	if failure, ok := errors.AsType[*net.OpError](err); ok {
		return failure.Op == "read" || failure.Op == "write"
	}
	_, failed := errors.AsType[syscall.Errno](err)
	return failed || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed)
}

// isAlert reports whether the peer has ended TLS with an alert.
func isAlert(err error) bool {
	failure, ok := errors.AsType[*net.OpError](err)
	return ok && failure.Op == "remote error"
}

// explainAlert adds the likely cause to an alert, which carries only a number.
func explainAlert(err error) error {
	return fmt.Errorf("the peer ended TLS, probably because it rejects this side's certificate; "+
		"see its log: %w", err)
}

// describeIdentity returns the name in the peer's certificate as a suffix for its address.
func describeIdentity(certificates []*x509.Certificate) string {
	if len(certificates) == 0 {
		return ""
	}
	c := certificates[0]
	name := c.Subject.CommonName
	switch {
	case len(c.DNSNames) > 0:
		name = c.DNSNames[0]
	case len(c.URIs) > 0:
		name = c.URIs[0].String()
	case len(c.IPAddresses) > 0:
		name = c.IPAddresses[0].String()
	}
	return " (" + printable.Quote(name, printable.MaxName) + ")"
}
