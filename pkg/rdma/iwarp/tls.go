// SPDX-License-Identifier: Apache-2.0

package iwarp

import (
	"context"
	"errors"
	"io"
	"runtime/debug"
	"syscall"

	"github.com/zc-relay/zc-relay/internal/linux"
	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/softrdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/tlsrecord"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// With TLS, MPA's stream is the content of TLS records (RFC 8446 section 5). The handshake is done
// when the connection is set up; here, the queue's thread seals and opens records. A record has no
// effect before it has been authenticated: it is opened in the queue's staging buffer, and payloads
// are copied from there to their destination. That, and the copy into the record that is sealed,
// are the only copies.

const (
	// sealedRecords is how many full records one system call sends: those of a batch that is long
	// enough, and the one for what exceeds them.
	sealedRecords = batchBytes/tlsrecord.MaxPlaintext + 1
	// sealedBytes has room for these, each after a change of the key, and for an alert.
	sealedBytes = sealedRecords*(tlsrecord.MaxPlaintext+tlsrecord.Overhead+keyUpdateBytes) +
		keyUpdateBytes
	// recordStagingBytes is how much one system call reads of a stream of records: all that a peer
	// sends with one call. If it were less, each call would leave a part of a record behind.
	recordStagingBytes = sealedBytes
	// keyUpdateBytes is more than a record that changes the key, or an alert.
	keyUpdateBytes = 64
	// firstRecordBytes is the size of the first record after a pause, which has room for a block of
	// 4 KiB and the message about it. The peer can open it while the network delivers the next one.
	firstRecordBytes = 4<<10 + 256
	// recordSegmentBytes stands for TCP's segment size: records hide where segments end, so an FPDU
	// may have any size.
	recordSegmentBytes = 65483
	// clientHello is the first byte of a connection that uses TLS: the type of a record with a
	// handshake message. MPA begins with a letter.
	clientHello = 22
)

// tlsLayer is the part of a socket that carries the stream in records.
type tlsLayer struct {
	session *tlsrecord.Session // nil after a fatal alert
	sealed  []byte             // records, of which the socket has taken the first sent bytes
	sent    int
	flowing bool   // a record has been sent since the last pause
	partial []byte // of a record whose rest has not arrived
	early   []byte // plaintext that has arrived before the connection was established
	ended   bool   // the peer has said that it sends no more
}

// errTruncated is why a stream ends whose end nobody has authenticated.
var errTruncated = errors.New("TCP ended before TLS did: the peer has died, or somebody has cut " +
	"the connection")

// acceptTLS does the handshake with a peer that uses TLS, unless secure is nil. It returns the
// stream that carries MPA.
func acceptTLS(
	ctx context.Context, conn network.Stream, secure *rdma.ServerTLS,
) (network.Stream, error) {
	if secure == nil {
		return conn, nil
	}
	h := newHandshake(ctx, conn)
	peeked := &peekedStream{Stream: conn, first: make([]byte, 1)}
	_, err := io.ReadFull(conn, peeked.first)
	h.stop()
	if err != nil {
		return nil, h.wrapError("read the first byte", err)
	}
	if peeked.first[0] == clientHello {
		secured, err := tlsrecord.Server(ctx, peeked, secure.Config())
		if err != nil {
			return nil, err
		}
		return secured, nil
	}
	if secure.Required {
		return nil, status.Errorf(status.Authentication,
			"%v does not use TLS, which this side requires", conn.RemoteAddr())
	}
	return peeked, nil
}

// peekedStream is a stream whose first byte has been read.
type peekedStream struct {
	network.Stream
	first []byte
}

// Read reads the first byte, and then from the stream.
func (s *peekedStream) Read(b []byte) (int, error) {
	if len(s.first) == 0 {
		return s.Stream.Read(b)
	}
	n := copy(b, s.first)
	s.first = s.first[n:]
	return n, nil
}

// protectionOf returns how a stream is protected.
func protectionOf(conn network.Stream) rdma.Protection {
	if _, secured := conn.(*tlsrecord.Stream); secured {
		return rdma.ProtectedByTLS
	}
	return rdma.Unprotected
}

// detachTLS takes over a connection and its session.
func detachTLS(conn *tlsrecord.Stream) (socket, error) {
	stream, session, plaintext, partial := conn.Detach()
	s, err := detachSocket(stream)
	if err != nil {
		session.Clear()
		_ = stream.Close() // closing conn would not
		return noSocket, err
	}
	s.tls = &tlsLayer{
		session: session, sealed: make([]byte, 0, sealedBytes),
		partial: append(make([]byte, 0, tlsrecord.MaxRecord), partial...), early: plaintext,
	}
	return s, nil
}

// holdsBack reports whether the socket has not taken all records.
func (s *socket) holdsBack() bool { return s.tls != nil && s.tls.sent < len(s.tls.sealed) }

// sendRecords seals and sends as much of g as the socket takes. It returns how many bytes it has
// removed from g. The last of them may be held back.
func (s *socket) sendRecords(g *linux.Gather, untrusted bool) (n int, err errno) {
	t := s.tls
	for {
		for t.sent < len(t.sealed) {
			sent, err := s.write(t.sealed[t.sent:])
			if err != 0 {
				return n, err
			}
			t.sent += sent
		}
		t.sealed, t.sent = t.sealed[:0], 0
		if g.Bytes() == 0 {
			return n, 0
		}
		for range sealedRecords {
			sealed, err := t.seal(g, untrusted)
			if err != 0 {
				return n, err
			}
			n += sealed
			if g.Bytes() == 0 {
				break
			}
		}
	}
}

// seal adds a record with the next bytes of g.
func (t *tlsLayer) seal(g *linux.Gather, untrusted bool) (n int, err errno) {
	if t.session.UpdateDue() {
		t.sealed = t.session.AppendKeyUpdate(t.sealed)
	}
	limit := tlsrecord.MaxPlaintext
	if !t.flowing {
		t.flowing, limit = true, firstRecordBytes
	}
	record := t.sealed[len(t.sealed):cap(t.sealed)]
	plaintext := record[tlsrecord.HeaderBytes:][:limit]
	if untrusted {
		n, err = takeGuarded(g, plaintext)
	} else {
		n = g.Take(plaintext)
	}
	if err == 0 {
		t.sealed = t.sealed[:len(t.sealed)+t.session.Seal(record, n)]
	}
	return n, err
}

// takeGuarded is g.Take of memory that may fault.
func takeGuarded(g *linux.Gather, b []byte) (n int, err errno) {
	previous := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(previous)
		if fault := recover(); fault != nil {
			if _, is := fault.(interface{ Addr() uintptr }); !is {
				panic(fault)
			}
			n, err = 0, syscall.EFAULT
		}
	}()
	return g.Take(b), 0
}

// paused notes that nothing is left to send.
func (s *socket) paused() {
	if s.tls != nil {
		s.tls.flowing = false
	}
}

// sayGoodbye tells the peer that the stream ends here, if the socket takes that at once.
func (s *socket) sayGoodbye() {
	t := s.tls
	if t.session == nil {
		return
	}
	t.sealed = t.session.AppendAlert(t.sealed, tlsrecord.CloseNotify)
	_, _ = s.write(t.sealed[t.sent:])
	t.session.Clear()
	t.session = nil
}

// receiveRecords makes one system call, for the rest of the partial record and at most left bytes
// beyond, and processes the records that are whole. It returns the same as receiveOnce.
func (c *connection) receiveRecords(left int) (n, wanted int, err errno) {
	t := c.socket.tls
	staging := c.queue.staging
	if len(t.partial) >= tlsrecord.HeaderBytes {
		return c.receiveRest(staging[:min(left, len(staging))])
	}
	have := copy(staging, t.partial)
	wanted = min(left, len(staging)-have)
	if n, err = c.socket.receive(staging[have : have+wanted]); n == 0 {
		return 0, wanted, err
	}
	c.queue.Fairness.Count(&c.Sharing, softrdma.Receiving, n)
	c.openRecords(staging[:have+n])
	return n, wanted, 0
}

// receiveRest has the kernel write the rest of the partial record to its buffer, and the input that
// follows it to staging.
func (c *connection) receiveRest(staging []byte) (n, wanted int, err errno) {
	t := c.socket.tls
	have := len(t.partial)
	length, _ := tlsrecord.RecordLength(t.partial) // openRecords has found it valid
	target := t.partial[have:length]
	wanted = len(target) + len(staging)
	if n, err = c.socket.receiveInto(target, staging); n == 0 {
		return 0, wanted, err
	}
	c.queue.Fairness.Count(&c.Sharing, softrdma.Receiving, n)
	arrived := min(n, len(target))
	c.openRecords(t.partial[:have+arrived])
	if c.Phase == softrdma.PhaseOpen && n > arrived {
		c.openRecords(staging[:n-arrived])
	}
	return n, wanted, 0
}

// receiveEarly processes what has arrived with the handshake: no event of the socket tells of it.
func (c *connection) receiveEarly() {
	t := c.socket.tls
	early := t.early
	t.early = nil
	if len(early) > 0 {
		c.process(early)
	}
	if c.Phase == softrdma.PhaseOpen {
		c.openRecords(c.queue.staging[:copy(c.queue.staging, t.partial)])
	}
}

// openRecords opens the records in input, processes what they carry, and keeps the rest of input.
// The connection may have ended when it returns.
func (c *connection) openRecords(input []byte) {
	t := c.socket.tls
	for len(input) >= tlsrecord.HeaderBytes {
		length, err := tlsrecord.RecordLength(input)
		if err == nil && len(input) < length {
			break
		}
		var data []byte
		if err == nil {
			data, err = t.session.Open(input[:length])
			input = input[length:]
		}
		switch {
		case err == io.EOF:
			t.ended = true
			c.peerClosed()
		case err != nil:
			c.failTLS(err)
		case len(data) > 0:
			c.process(data)
		}
		if c.Phase != softrdma.PhaseOpen {
			return
		}
	}
	t.partial = append(t.partial[:0], input...)
}

// failTLS ends the connection, and sends the peer an alert with the reason.
func (c *connection) failTLS(err error) {
	t := c.socket.tls
	t.sealed = t.session.AppendAlert(t.sealed, tlsrecord.AlertOf(err))
	_, _ = c.socket.write(t.sealed[t.sent:])
	t.session.Clear()
	t.session = nil
	c.end(status.Errorf(status.CodeOf(err), "connection to %v: %w", c.Agreed.Remote, err),
		rdma.StatusFlushed)
}
