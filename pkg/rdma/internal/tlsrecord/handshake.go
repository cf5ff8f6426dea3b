// SPDX-License-Identifier: Apache-2.0

package tlsrecord

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/zc-relay/zc-relay/internal/printable"
	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Client does the connecting side of a handshake over stream, bounded by ctx. config must permit
// TLS 1.3 only. The Stream owns stream. If Client fails, the caller does, and the deadlines of
// stream may have passed.
//
// The handshake ends on this side before the peer has examined its certificate. If the peer rejects
// that, Read fails with status.Authentication.
func Client(ctx context.Context, stream network.Stream, config *tls.Config) (*Stream, error) {
	return handshake(ctx, stream, config, true)
}

// Server is Client for the accepting side, which has examined the peer's certificate when it
// returns.
func Server(ctx context.Context, stream network.Stream, config *tls.Config) (*Stream, error) {
	return handshake(ctx, stream, config, false)
}

func handshake(
	ctx context.Context, stream network.Stream, config *tls.Config, isClient bool,
) (*Stream, error) {
	if config.MinVersion != tls.VersionTLS13 ||
		config.MaxVersion != 0 && config.MaxVersion != tls.VersionTLS13 {
		return nil, status.Errorf(status.BadConfig,
			"the TLS configuration must permit TLS 1.3 only")
	}
	if config.GetConfigForClient != nil {
		return nil, status.Errorf(status.BadConfig,
			"GetConfigForClient would replace the TLS configuration that reports the keys")
	}
	log := &keyLog{next: config.KeyLogWriter}
	defer log.clear()
	config = config.Clone()
	config.KeyLogWriter = log
	// With tickets a server's first record is sealed by crypto/tls, and sequence numbers differ.
	config.SessionTicketsDisabled, config.ClientSessionCache = true, nil

	connection := &handshakeConn{Stream: stream}
	secured := tls.Server(connection, config)
	if isClient {
		secured = tls.Client(connection, config)
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = stream.SetDeadline(time.Unix(1, 0))
	})
	// If crypto/tls saw the end of ctx, it would close the connection.
	err := secured.HandshakeContext(context.WithoutCancel(ctx))
	connection.isOver = true
	if !stop() {
		<-interrupted
		cause := context.Cause(ctx)
		return nil, status.Errorf(status.CodeOf(cause), "TLS handshake: %w", cause)
	}
	if err != nil {
		return nil, handshakeError(err)
	}
	if !connection.isAtBoundary() {
		return nil, status.Errorf(status.Unexpected, "TLS handshake: ended within a record")
	}
	return newStream(stream, secured.ConnectionState(), isClient, log)
}

// newStream returns the Stream of a connection whose handshake has succeeded.
func newStream(
	stream network.Stream, state tls.ConnectionState, isClient bool, log *keyLog,
) (*Stream, error) {
	// RFC 9266 section 4.2
	const label, bindingBytes = "EXPORTER-Channel-Binding", 32
	binding, err := state.ExportKeyingMaterial(label, nil, bindingBytes)
	if err != nil {
		return nil, status.Errorf(status.Unexpected, "TLS channel binding: %w", err)
	}
	client, server, err := log.take()
	if err != nil {
		return nil, err
	}
	in, out := client, server
	if isClient {
		in, out = server, client
	}
	session, err := newSession(state.CipherSuite, isClient, in, out)
	if err != nil {
		return nil, err
	}
	return &Stream{Stream: stream, session: session, state: state, binding: binding}, nil
}

// keyLog receives the traffic secrets of one connection, in the format of NSS key logs.
type keyLog struct {
	next           io.Writer // gets everything, too, unless it is nil
	client, server []byte
}

func (l *keyLog) Write(line []byte) (int, error) {
	label, values, _ := bytes.Cut(line, []byte{' '})
	_, value, _ := bytes.Cut(bytes.TrimSpace(values), []byte{' '}) // behind the client's random
	var secret *[]byte
	switch string(label) {
	case "CLIENT_TRAFFIC_SECRET_0":
		secret = &l.client
	case "SERVER_TRAFFIC_SECRET_0":
		secret = &l.server
	}
	if secret != nil {
		clear(*secret)
		*secret = make([]byte, hex.DecodedLen(len(value)))
		if _, err := hex.Decode(*secret, value); err != nil {
			return 0, fmt.Errorf("TLS key log: %w", err)
		}
	}
	if l.next == nil {
		return len(line), nil
	}
	return l.next.Write(line)
}

// take returns the secrets, which the caller owns.
func (l *keyLog) take() (client, server []byte, err error) {
	if len(l.client) == 0 || len(l.server) == 0 {
		return nil, nil, status.Errorf(status.Unexpected, "crypto/tls has not logged its keys")
	}
	client, server = l.client, l.server
	l.client, l.server = nil, nil
	return client, server, nil
}

func (l *keyLog) clear() {
	clear(l.client)
	clear(l.server)
}

// maxHandshake bounds what a peer may send before it has proved its identity, in bytes. A chain of
// three certificates with keys of RSA-4096 has a fifth.
const maxHandshake = 32 << 10

var (
	errLongHandshake = fmt.Errorf("it has sent more than %d bytes before it has proved its "+
		"identity: give its certificate a shorter chain, or fewer names", maxHandshake)
	errHandedOver = errors.New("the TLS handshake is over")
)

// handshakeConn is the connection that crypto/tls uses. Its Read never passes the end of a record,
// so that what follows the handshake is left in the stream. When the handshake is over, it rejects
// everything.
type handshakeConn struct {
	network.Stream
	isOver bool
	header [HeaderBytes]byte
	have   int // bytes of the header that have been read
	rest   int // bytes that are missing of a record whose header is complete
	total  int
}

func (c *handshakeConn) Read(b []byte) (int, error) {
	if c.isOver {
		return 0, errHandedOver
	}
	if c.total >= maxHandshake {
		return 0, errLongHandshake
	}
	limit := c.rest
	if c.have < HeaderBytes {
		limit = HeaderBytes - c.have
	}
	n, err := c.Stream.Read(b[:min(len(b), limit)])
	c.total += n
	if c.have < HeaderBytes {
		copy(c.header[c.have:], b[:n])
		if c.have += n; c.have == HeaderBytes {
			c.rest = int(binary.BigEndian.Uint16(c.header[3:]))
		}
	} else {
		c.rest -= n
	}
	if c.have == HeaderBytes && c.rest == 0 {
		c.have = 0
	}
	return n, err
}

// isAtBoundary reports whether the next byte begins a record.
func (c *handshakeConn) isAtBoundary() bool { return c.have == 0 }

func (c *handshakeConn) Write(b []byte) (int, error) {
	if c.isOver {
		return 0, errHandedOver
	}
	return c.Stream.Write(b)
}

// Close fails. The connection outlasts the tls.Conn.
func (c *handshakeConn) Close() error { return errHandedOver }

// CloseWrite fails, too.
func (c *handshakeConn) CloseWrite() error { return errHandedOver }

// handshakeError adds a code and the likely cause to an error of crypto/tls.
func handshakeError(err error) error {
	const text = "TLS handshake"
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return status.Errorf(status.Authentication, "%s: one side speaks TLS and the other does "+
			"not: set up TLS on both sides or on neither", text)
	}
	if failure, ok := errors.AsType[*net.OpError](err); ok && failure.Op == "remote error" {
		return status.Errorf(status.Authentication, "%s: the peer ended TLS, probably because it "+
			"rejects this side's certificate; see its log: %w", text, err)
	}
	if rejected, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return status.Errorf(status.Authentication, "%s: this side rejected the peer's "+
			"certificate: %w", text, printable.Error(rejected.Err))
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return status.Errorf(status.TimeOut, "%s: %w", text, err)
	}
	if isConnectionLoss(err) {
		return status.Errorf(status.ConnectionReset,
			"%s: lost the connection (does the peer speak TLS?): %w", text, err)
	}
	if errors.Is(err, errLongHandshake) {
		return status.Errorf(status.Authentication, "%s: the peer failed: %w", text, err)
	}
	return status.Errorf(status.Authentication, "%s: %w", text, printable.Error(err))
}

// isConnectionLoss reports whether the network or the peer has ended the connection.
func isConnectionLoss(err error) bool {
	if failure, ok := errors.AsType[*net.OpError](err); ok {
		return failure.Op == "read" || failure.Op == "write"
	}
	_, failed := errors.AsType[syscall.Errno](err)
	return failed || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed)
}
