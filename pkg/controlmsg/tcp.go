package controlmsg

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// TCPConfig bounds a TCP transport. Zero values mean the defaults.
type TCPConfig struct {
	// MaxMessageSize is the largest message in bytes, sent or received;
	// DefaultMaxMessageSize.
	MaxMessageSize int
	// MessageTimeout is how long the rest of a message may take once its
	// first byte has come; 10 s.
	MessageTimeout time.Duration
	// UserTimeout is how long sent bytes may stay unacknowledged before the
	// kernel takes the connection for lost (TCP_USER_TIMEOUT, RFC 5482); 5 s.
	UserTimeout time.Duration
	// CloseTimeout is how long Close waits for the peer to close; 1 s.
	CloseTimeout time.Duration
}

func (c TCPConfig) withDefaults() TCPConfig {
	if c.MaxMessageSize == 0 {
		c.MaxMessageSize = DefaultMaxMessageSize
	}
	if c.MessageTimeout == 0 {
		c.MessageTimeout = 10 * time.Second
	}
	if c.UserTimeout == 0 {
		c.UserTimeout = 5 * time.Second
	}
	if c.CloseTimeout == 0 {
		c.CloseTimeout = time.Second
	}
	return c
}

// tcpTransport frames messages on a TCP connection, in plain text or by TLS.
type tcpTransport struct {
	conn   *net.TCPConn
	stream stream // on conn: what messages are written to and read from
	config TCPConfig
	frame  []byte // being sent
	name   string // of the peer
}

// stream is a connection that can be ended in one direction.
type stream interface {
	net.Conn
	CloseWrite() error
}

// NewTCPTransport returns a transport over conn, which it owns from now on.
// What it carries can be read and changed on the way; see NewTLSClient and
// NewTLSServer.
func NewTCPTransport(conn *net.TCPConn, config TCPConfig) Transport {
	return newTCPTransport(conn, config)
}

func newTCPTransport(conn *net.TCPConn, config TCPConfig) *tcpTransport {
	t := &tcpTransport{
		conn: conn, stream: &lastWordsConn{TCPConn: conn}, config: config.withDefaults(),
		name: conn.RemoteAddr().String(),
	}
	t.setOptions()
	return t
}

// setOptions makes the kernel send at once and notice a lost network. Where
// it refuses, the endpoint's own deadlines and keep-alives still hold, only
// later; a connection that is broken already says so on first use.
func (t *tcpTransport) setOptions() {
	timeout := t.config.UserTimeout
	_ = t.conn.SetNoDelay(true)
	_ = setUserTimeout(t.conn, timeout)
	_ = t.conn.SetKeepAliveConfig(net.KeepAliveConfig{
		Enable: true, Idle: max(timeout, time.Second), Interval: max(timeout/4, time.Second), Count: 4,
	})
}

func (t *tcpTransport) MaxMessageSize() int { return t.config.MaxMessageSize }

func (t *tcpTransport) RemoteName() string { return t.name }

func (t *tcpTransport) Send(ctx context.Context, message []byte) error {
	if len(message) == 0 || len(message) > t.config.MaxMessageSize {
		return status.Errorf(status.TooBig, "send message of %d bytes to %s: it must have 1 to %d",
			len(message), t.RemoteName(), t.config.MaxMessageSize)
	}
	t.frame = appendFrame(t.frame[:0], message)
	deadline := newDeadline(ctx, t.stream.SetWriteDeadline)
	defer deadline.stop()
	if _, err := t.stream.Write(t.frame); err != nil {
		return t.failure(ctx, "send message to", err)
	}
	return nil
}

func (t *tcpTransport) Receive(ctx context.Context) ([]byte, error) {
	deadline := newDeadline(ctx, t.stream.SetReadDeadline)
	defer deadline.stop()
	message, err := readFrame(t.stream, t.config.MaxMessageSize, func() { deadline.shorten(t.config.MessageTimeout) })
	if err != nil {
		return nil, t.failure(ctx, "receive message from", err)
	}
	return message, nil
}

// failure gives an error of the connection its operation, peer and code.
func (t *tcpTransport) failure(ctx context.Context, operation string, err error) error {
	text := fmt.Sprintf("%s %s", operation, t.RemoteName())
	if _, coded := errors.AsType[*status.Error](err); coded {
		return fmt.Errorf("%s: %w", text, err)
	}
	switch {
	case ctx.Err() != nil:
		return waitError(ctx, text)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return status.Errorf(status.ConnectionReset, "%s: the peer closed the connection inside a message", text)
	case errors.Is(err, io.EOF):
		return status.Errorf(status.NotConnected, "%s: the peer has closed the connection", text)
	case errors.Is(err, net.ErrClosed):
		return status.Errorf(status.NotConnected, "%s: the connection is closed", text)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return status.Errorf(status.TimeOut, "%s: it takes too long: %w", text, err)
	case isAlert(err):
		return status.Errorf(status.Authentication, "%s: %w", text, explainAlert(err))
	}
	return status.Errorf(status.ConnectionReset, "%s: %w", text, err)
}

// Close shuts down the connection for writing and waits for the peer to do
// the same, so that the last message is not lost: closing a socket with
// unread data makes the kernel discard what the peer has not read yet.
func (t *tcpTransport) Close() error {
	// TLS has an end of its own, which must come before that of TCP.
	ended := t.stream.SetWriteDeadline(time.Now().Add(t.config.CloseTimeout)) == nil && t.stream.CloseWrite() == nil
	if ended && t.conn.CloseWrite() == nil {
		t.discard()
	}
	if err := t.conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("close connection to %s: %w", t.RemoteName(), err)
	}
	return nil
}

// discard reads until the peer closes, within bounds. Whatever ends it, the
// connection is closed next. It reads below TLS, whose end is not that of
// the connection.
func (t *tcpTransport) discard() {
	if t.conn.SetReadDeadline(time.Now().Add(t.config.CloseTimeout)) != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, t.conn, 2*int64(t.config.MaxMessageSize))
}

// Abort makes the kernel drop what is queued and reset the connection.
func (t *tcpTransport) Abort() {
	_ = t.conn.SetLinger(0)
	_ = t.conn.Close()
}

// frameHeaderSize is the length of the length that precedes every message on
// a byte stream: 32 bits, big-endian, without itself.
const frameHeaderSize = 4

// appendFrame appends a framed message to dst.
func appendFrame(dst, message []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(message)))
	return append(dst, message...)
}

// readFrame reads one message of 1 to limit bytes. It calls begun when the
// first byte has come. The end of the stream is io.EOF between two messages
// and io.ErrUnexpectedEOF inside one.
func readFrame(r io.Reader, limit int, begun func()) ([]byte, error) {
	var header [frameHeaderSize]byte
	if _, err := io.ReadFull(r, header[:1]); err != nil {
		return nil, err
	}
	begun()
	if _, err := io.ReadFull(r, header[1:]); err != nil {
		return nil, incomplete(err)
	}
	length := binary.BigEndian.Uint32(header[:])
	if length == 0 {
		return nil, status.Errorf(status.InvalidValue, "a message of 0 bytes is announced")
	}
	if looksLikeTLS(header) {
		return nil, status.Errorf(status.Authentication,
			"the peer speaks TLS, and this side does not: set up TLS on both sides or on none")
	}
	if int64(length) > int64(limit) {
		return nil, status.Errorf(status.TooBig,
			"a message of %d bytes is announced, the limit is %d (is this a client of another protocol?)", length, limit)
	}
	message := make([]byte, length)
	if _, err := io.ReadFull(r, message); err != nil {
		return nil, incomplete(err)
	}
	return message, nil
}

// looksLikeTLS tells the first record of TLS (RFC 8446, 5.1) from a length: it
// would be one of more than 300 MiB.
func looksLikeTLS(header [frameHeaderSize]byte) bool {
	const handshakeRecord, majorVersion = 22, 3
	return header[0] == handshakeRecord && header[1] == majorVersion
}

// incomplete turns the end of the stream inside a message into an error of
// its own.
func incomplete(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// longAgo is a deadline that ends a wait at once.
var longAgo = time.Unix(1, 0)

// deadline ends reads or writes of a connection when a context ends.
type deadline struct {
	ctx      context.Context
	set      func(time.Time) error
	stopFunc func() bool
	ended    chan struct{} // closed when the context's end has been applied
}

// newDeadline bounds what set bounds by ctx, until stop is called. Errors of
// set are those of a closed connection, which the next read or write reports.
func newDeadline(ctx context.Context, set func(time.Time) error) *deadline {
	d := &deadline{ctx: ctx, set: set, ended: make(chan struct{})}
	latest, _ := ctx.Deadline() // the zero time means none, for set as well
	_ = set(latest)
	d.stopFunc = context.AfterFunc(ctx, func() {
		_ = set(longAgo)
		close(d.ended)
	})
	return d
}

// shorten ends the wait after timeout, unless the context ends it before.
func (d *deadline) shorten(timeout time.Duration) {
	latest := time.Now().Add(timeout)
	if own, ok := d.ctx.Deadline(); ok && own.Before(latest) {
		return
	}
	_ = d.set(latest)
	if d.ctx.Err() != nil {
		// The context may have ended just before, and was overridden.
		_ = d.set(longAgo)
	}
}

// stop makes sure that the context's end does not reach into the next
// operation.
func (d *deadline) stop() {
	if !d.stopFunc() {
		<-d.ended
	}
}

// lastWordsConn is a TCP connection that reads on once after a reset: what the
// peer said before it closed may still be there, and tells why.
type lastWordsConn struct {
	*net.TCPConn
	reset bool // Read has seen the connection reset
}

func (c *lastWordsConn) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	if n > 0 || c.reset || !isReset(err) {
		return n, err
	}
	c.reset = true
	if n, readOnErr := c.TCPConn.Read(b); n > 0 {
		return n, readOnErr
	}
	return 0, err
}
