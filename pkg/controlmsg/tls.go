package controlmsg

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// NewTLSClient does the connecting side's part of a TLS handshake over conn
// and returns a transport that is secured by it. Either way it owns conn from
// now on. The end of ctx ends the handshake.
//
// With TLS 1.3 the peer looks at this side's certificate when the handshake
// is already over for this side: that it is refused shows when a message is
// sent or received, as status.Authentication.
func NewTLSClient(ctx context.Context, conn *net.TCPConn, secure *tls.Config, config TCPConfig) (Transport, error) {
	t := newTCPTransport(conn, config)
	if err := t.handshake(ctx, tls.Client(t.stream, secure)); err != nil {
		return nil, err
	}
	return t, nil
}

// NewTLSServer is NewTLSClient for the accepting side. A peer that does not
// speak TLS is told so.
func NewTLSServer(ctx context.Context, conn *net.TCPConn, secure *tls.Config, config TCPConfig) (Transport, error) {
	t := newTCPTransport(conn, config)
	if err := t.handshake(ctx, tls.Server(t.stream, secure)); err != nil {
		return nil, err
	}
	return t, nil
}

// handshake secures the transport, or fails and closes it.
func (t *tcpTransport) handshake(ctx context.Context, secured *tls.Conn) error {
	err := secured.HandshakeContext(ctx)
	if err == nil {
		t.stream = secured
		t.name += describeIdentity(secured.ConnectionState().PeerCertificates)
		return nil
	}
	reason := t.handshakeError(ctx, err)
	if speaksPlainText(err) {
		t.tellInPlainText(ctx, reason)
	}
	// In order, so that the peer gets the alert that tells it why.
	return errors.Join(reason, t.Close())
}

// speaksPlainText reports whether a handshake failed because the peer's first
// bytes are a message of this protocol, which TLS cannot begin with.
func speaksPlainText(err error) bool {
	record, ok := errors.AsType[tls.RecordHeaderError](err)
	return ok && record.RecordHeader[0] == 0
}

// tellInPlainText sends the reason to a peer that expects messages. If that
// fails, nothing is lost but an explanation.
func (t *tcpTransport) tellInPlainText(ctx context.Context, reason error) {
	ctx, cancel := context.WithTimeout(ctx, lastWordsTimeout)
	defer cancel()
	farewell, err := NewProtobufCodec().Append(nil, &Envelope{Message: report(reason, PhaseConnect)})
	if err == nil {
		_ = t.Send(ctx, farewell)
	}
}

func (t *tcpTransport) handshakeError(ctx context.Context, err error) error {
	text := "TLS handshake with " + t.RemoteName()
	if ctx.Err() != nil {
		return waitError(ctx, text)
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return status.Errorf(status.Authentication, "%s: one side speaks TLS and the other does not: set up TLS on both sides or on none", text)
	}
	if isAlert(err) {
		return status.Errorf(status.Authentication, "%s: %w", text, explainAlert(err))
	}
	if rejected, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return status.Errorf(status.Authentication, "%s: its certificate%s is not accepted: %w",
			text, describeIdentity(rejected.UnverifiedCertificates), rejected.Err)
	}
	if isLoss(err) {
		return status.Errorf(status.ConnectionReset, "%s: the connection was lost (does the peer speak TLS?): %w", text, err)
	}
	return status.Errorf(status.Authentication, "%s: %w", text, err)
}

// isLoss reports whether a handshake failed because of the network, or
// because the peer left.
func isLoss(err error) bool {
	if failure, ok := errors.AsType[*net.OpError](err); ok {
		return failure.Op == "read" || failure.Op == "write"
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}

// isAlert reports whether the peer has ended TLS with an alert.
func isAlert(err error) bool {
	failure, ok := errors.AsType[*net.OpError](err)
	return ok && failure.Op == "remote error"
}

// explainAlert makes a sentence of an alert, which is all that a peer may say
// within TLS.
func explainAlert(err error) error {
	return fmt.Errorf("the peer ended TLS, probably because of the certificate of this side; its log tells more: %w", err)
}

// maxIdentityLength bounds what logs repeat of a certificate, in bytes.
const maxIdentityLength = 128

// describeIdentity is what the peer's certificate calls it, in the form in
// which it follows an address.
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
	return fmt.Sprintf(" (%q)", printableLine(name, maxIdentityLength))
}
