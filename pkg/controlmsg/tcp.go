// SPDX-License-Identifier: Apache-2.0

package controlmsg

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// TCPConfig bounds a TCP transport. Zero values mean the defaults.
type TCPConfig struct {
	// MaxMessageSize is the largest message in bytes, in both directions. The default is
	// DefaultMaxMessageSize, or that of Framing.
	MaxMessageSize int
	// MessageTimeout is how long the rest of a message may take once its first byte has arrived.
	// The default is 10 s.
	MessageTimeout time.Duration
	// UserTimeout is how long sent bytes, or TCP's probes of an idle connection, may stay
	// unacknowledged before the kernel considers the connection lost (TCP_USER_TIMEOUT, RFC 5482).
	// The default is 5 s; a shorter time counts as 5 s, because the endpoint's keep-alives detect
	// the loss of a peer sooner.
	UserTimeout time.Duration
	// CloseTimeout is how long Close waits for the peer to close. The default is 1 s.
	CloseTimeout time.Duration
	// Framing finds the messages of another protocol, which hold their length themselves. With nil,
	// a length precedes every message.
	Framing Framing
	// DetectFraming returns the peer's Framing, or nil, by the first DetectedBytes bytes that it
	// sends. It replaces Framing, which applies to what is sent before the peer's first message has
	// been received.
	DetectFraming func(first [DetectedBytes]byte) Framing
}

// DetectedBytes is how many bytes TCPConfig.DetectFraming sees: the length and the first byte of a
// message of our own protocol. No message is shorter.
const DetectedBytes = frameHeaderSize + 1

// Framing finds the ends of messages on a byte stream. Any goroutine may call its methods.
type Framing interface {
	// MaxSize returns the size in bytes of the largest message.
	MaxSize() int
	// HeaderSize returns how many bytes at the start of a message tell its length.
	HeaderSize() int
	// MessageSize returns the length in bytes that the first HeaderSize bytes of a message tell. It
	// counts all of the message.
	MessageSize(header []byte) uint64
}

func (c TCPConfig) withDefaults() TCPConfig {
	if c.MaxMessageSize == 0 {
		c.MaxMessageSize = DefaultMaxMessageSize
		if c.Framing != nil {
			c.MaxMessageSize = c.Framing.MaxSize()
		}
	}
	if c.MessageTimeout == 0 {
		c.MessageTimeout = 10 * time.Second
	}
	c.UserTimeout = max(c.UserTimeout, 5*time.Second)
	if c.CloseTimeout == 0 {
		c.CloseTimeout = time.Second
	}
	return c
}

// tcpTransport frames messages on a byte stream, in plain text or inside TLS.
type tcpTransport struct {
	conn   network.Stream
	stream stream // carries the frames: conn, or TLS on conn
	config TCPConfig
	frame  []byte // send buffer
	name   string // of the peer
}

// stream is a connection that can be closed in one direction, like tls.Conn.
type stream interface {
	net.Conn
	CloseWrite() error
}

// NewTCPTransport returns a transport over conn, which it owns from now on. Anyone on the network
// can read and change what it carries; see NewTLSClient and NewTLSServer.
func NewTCPTransport(conn network.Stream, config TCPConfig) Transport {
	return newTCPTransport(conn, config)
}

func newTCPTransport(conn network.Stream, config TCPConfig) *tcpTransport {
	t := &tcpTransport{
		conn: conn, stream: &resetReader{Stream: conn}, config: config.withDefaults(),
		name: conn.RemoteAddr().String(),
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		setOptions(tcp, t.config.UserTimeout)
	}
	return t
}

// keepAliveProbes is how often TCP probes an idle connection within the user timeout. Linux gives
// up once that has passed since the last byte from the peer and a probe is unanswered, so a
// connection survives the loss of all probes but one.
const keepAliveProbes = 5

// setOptions makes the kernel send at once and detect a lost network. If it rejects an option, the
// endpoint's own timeouts and keep-alives still work, only later; a broken connection fails on
// first use anyway.
func setOptions(conn *net.TCPConn, timeout time.Duration) {
	_ = conn.SetNoDelay(true)
	_ = setUserTimeout(conn, timeout)
	interval := timeout / keepAliveProbes
	_ = conn.SetKeepAliveConfig(net.KeepAliveConfig{
		Enable: true, Idle: interval, Interval: interval, Count: keepAliveProbes,
	})
}

func (t *tcpTransport) MaxMessageSize() int { return t.config.MaxMessageSize }

func (t *tcpTransport) RemoteName() string { return t.name }

func (t *tcpTransport) Send(ctx context.Context, message []byte) error {
	if len(message) == 0 || len(message) > t.config.MaxMessageSize {
		return status.Errorf(status.TooBig, "send message of %d bytes to %s: must have 1 to %d",
			len(message), t.RemoteName(), t.config.MaxMessageSize)
	}
	if t.config.Framing == nil {
		t.frame = appendFrame(t.frame[:0], message)
	} else {
		t.frame = append(t.frame[:0], message...)
	}
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
	message, err := t.read(func() { deadline.shorten(t.config.MessageTimeout) })
	if err != nil {
		return nil, t.failure(ctx, "receive message from", err)
	}
	return message, nil
}

// read reads one message and calls begun after its first byte.
func (t *tcpTransport) read(begun func()) ([]byte, error) {
	var from io.Reader = t.stream
	if detect := t.config.DetectFraming; detect != nil {
		var first [DetectedBytes]byte
		if err := readHeader(from, first[:], begun); err != nil {
			return nil, err
		}
		from = io.MultiReader(bytes.NewReader(first[:]), from)
		begun = func() {} // the message has begun
		t.config.DetectFraming = nil
		if framing := detect(first); framing != nil {
			t.config.Framing, t.config.MaxMessageSize = framing, framing.MaxSize()
		}
	}
	if framing := t.config.Framing; framing != nil {
		return readFramed(from, framing, t.config.MaxMessageSize, begun)
	}
	return readFrame(from, t.config.MaxMessageSize, begun)
}

// failure adds operation, peer and code to an error of the connection.
func (t *tcpTransport) failure(ctx context.Context, operation string, err error) error {
	text := operation + " " + t.RemoteName()
	if _, coded := errors.AsType[*status.Error](err); coded {
		return fmt.Errorf("%s: %w", text, err)
	}
	switch {
	case ctx.Err() != nil:
		return waitError(ctx, text)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return status.Errorf(status.ConnectionReset,
			"%s: the peer closed the connection inside a message", text)
	case errors.Is(err, io.EOF):
		return status.Errorf(status.NotConnected, "%s: the peer has closed the connection", text)
	case errors.Is(err, net.ErrClosed):
		return status.Errorf(status.NotConnected, "%s: the connection is closed", text)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return status.Errorf(status.TimeOut, "%s: timed out: %w", text, err)
	case isAlert(err):
		return status.Errorf(status.Authentication, "%s: %w", text, explainAlert(err))
	}
	return status.Errorf(status.ConnectionReset, "%s: %w", text, err)
}

// Close shuts down the connection for writing and waits, within bounds, for the peer to close too.
// Otherwise the last message could be lost: closing a socket with unread data makes the kernel
// discard what the peer has not read yet.
func (t *tcpTransport) Close() error {
	// TLS has its own end, which must be sent before TCP's. The peer's data is read below TLS,
	// because the end of TLS is not the end of the connection.
	if t.stream.SetWriteDeadline(time.Now().Add(t.config.CloseTimeout)) == nil &&
		t.stream.CloseWrite() == nil && t.conn.CloseWrite() == nil &&
		t.conn.SetReadDeadline(time.Now().Add(t.config.CloseTimeout)) == nil {
		_, _ = io.CopyN(io.Discard, t.conn, 2*int64(t.config.MaxMessageSize))
	}
	if err := t.conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("close connection to %s: %w", t.RemoteName(), err)
	}
	return nil
}

// Abort makes the kernel drop queued data and reset the connection.
func (t *tcpTransport) Abort() {
	_ = t.conn.SetLinger(0)
	_ = t.conn.Close()
}

// frameHeaderSize is the size of the length that precedes every message on a byte stream: 32 bits,
// big-endian, not counting itself.
const frameHeaderSize = 4

func appendFrame(dst, message []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(message)))
	return append(dst, message...)
}

// readFrame reads one message of 1 to limit bytes and calls begun after its first byte. The end of
// the stream is io.EOF between two messages and io.ErrUnexpectedEOF inside one.
func readFrame(r io.Reader, limit int, begun func()) ([]byte, error) {
	var header [frameHeaderSize]byte
	if err := readHeader(r, header[:], begun); err != nil {
		return nil, err
	}
	length := binary.BigEndian.Uint32(header[:])
	if length == 0 {
		return nil, status.Errorf(status.InvalidValue, "message length is 0")
	}
	if err := foreign(header[:]); err != nil {
		return nil, err
	}
	if int64(length) > int64(limit) {
		return nil, status.Errorf(status.TooBig,
			"message length is %d bytes, the limit is %d (is this a client of another protocol?)",
			length, limit)
	}
	message := make([]byte, length)
	if _, err := io.ReadFull(r, message); err != nil {
		return nil, insideMessage(err)
	}
	return message, nil
}

// readHeader reads the beginning of a message, and calls begun after its first byte.
func readHeader(r io.Reader, header []byte, begun func()) error {
	if _, err := io.ReadFull(r, header[:1]); err != nil {
		return err
	}
	begun()
	if _, err := io.ReadFull(r, header[1:]); err != nil {
		return insideMessage(err)
	}
	return nil
}

// foreign returns an error if a message begins like those of another protocol, which read as
// lengths of more than 300 MiB.
func foreign(header []byte) error {
	if len(header) < frameHeaderSize {
		return nil
	}
	const alertRecord, handshakeRecord, majorVersion = 21, 22, 3 // RFC 8446, 5.1
	if (header[0] == alertRecord || header[0] == handshakeRecord) && header[1] == majorVersion {
		return status.Errorf(status.Authentication,
			"the peer speaks TLS, and this side does not: set up TLS on both sides or on neither")
	}
	switch begin := string(header[:frameHeaderSize]); begin {
	case "HTTP":
		return status.Errorf(status.BadConfig, "the peer speaks HTTP: its port is not the control port "+
			"of a target (--listen-port there), but for instance that of its metrics")
	case "GET ", "HEAD", "POST", "PUT ", "CONN", "OPTI", "PRI ":
		return status.Errorf(status.BadConfig, "the peer speaks HTTP, a client of another protocol: "+
			"this is the control port, and metrics have their own (--metrics-listen)")
	case "SSH-":
		return status.Errorf(status.BadConfig, "the peer speaks SSH: its port is not the control port "+
			"of a target (--listen-port there)")
	}
	return nil
}

// readFramed is readFrame for messages of another protocol.
func readFramed(r io.Reader, framing Framing, limit int, begun func()) ([]byte, error) {
	header := make([]byte, framing.HeaderSize())
	if err := readHeader(r, header, begun); err != nil {
		return nil, err
	}
	size := framing.MessageSize(header)
	if size < uint64(len(header)) || size > uint64(limit) {
		if err := foreign(header); err != nil {
			return nil, err
		}
		return nil, status.Errorf(status.TooBig,
			"message length is %d bytes, must be %d to %d (is this a client of another protocol?)",
			size, len(header), limit)
	}
	message := append(header, make([]byte, size-uint64(len(header)))...)
	if _, err := io.ReadFull(r, message[len(header):]); err != nil {
		return nil, insideMessage(err)
	}
	return message, nil
}

func insideMessage(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// deadline ends the reads or writes of a connection when a context ends.
type deadline struct {
	ctx      context.Context
	set      func(time.Time) error
	stopFunc func() bool
	ended    chan struct{} // closed when the context's end has been applied
}

// longAgo is a deadline that ends a wait at once.
var longAgo = time.Unix(1, 0)

// newDeadline applies the end of ctx to a connection until stop is called. set is the connection's
// SetReadDeadline or SetWriteDeadline. It fails only on a closed connection, which the next read or
// write reports.
func newDeadline(ctx context.Context, set func(time.Time) error) *deadline {
	d := &deadline{ctx: ctx, set: set, ended: make(chan struct{})}
	latest, _ := ctx.Deadline() // the zero time means none, also for set
	_ = set(latest)
	d.stopFunc = context.AfterFunc(ctx, func() {
		_ = set(longAgo)
		close(d.ended)
	})
	return d
}

// shorten ends the wait after timeout, unless the context ends it earlier.
func (d *deadline) shorten(timeout time.Duration) {
	latest := time.Now().Add(timeout)
	if own, ok := d.ctx.Deadline(); ok && own.Before(latest) {
		return
	}
	_ = d.set(latest)
	if d.ctx.Err() != nil {
		_ = d.set(longAgo) // d.set(latest) may have overwritten the end of the context
	}
}

// stop keeps the end of the context from affecting the next operation.
func (d *deadline) stop() {
	if !d.stopFunc() {
		<-d.ended
	}
}

// resetReader is a connection that reads once more after a reset: the peer's farewell, which gives
// the reason, may still be in the socket.
type resetReader struct {
	network.Stream
	reset bool // Read has seen the reset
}

func (c *resetReader) Read(b []byte) (int, error) {
	n, err := c.Stream.Read(b)
	if n > 0 || c.reset || !isReset(err) {
		return n, err
	}
	c.reset = true
	if n, again := c.Stream.Read(b); n > 0 {
		return n, again
	}
	return 0, err
}
