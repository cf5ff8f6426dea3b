// SPDX-License-Identifier: Apache-2.0

package tlsrecord

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Stream is the plaintext of a connection for blocking calls, which may be concurrent as those of
// any network.Stream. Its other methods are those of the stream underneath.
type Stream struct {
	network.Stream
	state   tls.ConnectionState
	binding []byte

	reading sync.Mutex      // held by Read; guards the fields below
	input   [MaxRecord]byte // the current record, never more
	have    int             // bytes of input
	data    []byte          // application data in input that has not been read
	readErr error           // of all reads from now on

	writing  sync.Mutex // held by Write; guards the fields below
	output   []byte
	writeErr error // of all writes from now on: the peer may have got a part of a record

	mu      sync.Mutex // guards session; held while nothing blocks
	session *Session

	detached bool // guarded by all three; changes while no call is in progress
}

// lastRecordTimeout is how long the last record of a connection, an alert, may wait for room in the
// stream.
const lastRecordTimeout = 250 * time.Millisecond

// errTruncated is the error of a connection that TCP ends before TLS does. It may not be the peer
// who has ended it.
var errTruncated = status.Errorf(status.ConnectionReset,
	"the connection ended without the end of TLS (close_notify): %w", io.ErrUnexpectedEOF)

// errDetached matches net.ErrClosed.
var errDetached = status.Errorf(status.Shutdown, "the TLS stream has been detached: %w",
	net.ErrClosed)

// State returns the result of the handshake.
func (s *Stream) State() tls.ConnectionState { return s.state }

// ChannelBinding returns 32 bytes that are the same at both ends, and differ for all connections
// (tls-exporter, RFC 9266).
func (s *Stream) ChannelBinding() []byte { return s.binding }

// Read reads application data. It returns io.EOF only if the peer has said that it will not send
// more, and an error that matches io.ErrUnexpectedEOF if the connection ends without that. After a
// deadline, it continues with what has arrived.
func (s *Stream) Read(b []byte) (int, error) {
	s.reading.Lock()
	defer s.reading.Unlock()
	if len(b) == 0 {
		return 0, nil
	}
	for len(s.data) == 0 {
		if s.readErr != nil {
			return 0, s.readErr
		}
		if err := s.readRecord(); err != nil {
			return 0, err
		}
	}
	n := copy(b, s.data)
	s.data = s.data[n:]
	return n, nil
}

// readRecord reads the rest of the current record, and opens it.
func (s *Stream) readRecord() error {
	for {
		need := HeaderBytes
		if s.have >= HeaderBytes {
			length, err := RecordLength(s.input[:HeaderBytes])
			if err != nil || s.have == length { // Open finds the same error
				return s.openRecord(s.input[:s.have])
			}
			need = length
		}
		n, err := s.Stream.Read(s.input[s.have:need])
		s.have += n
		if errors.Is(err, io.EOF) {
			s.readErr = errTruncated
			return errTruncated
		}
		if err != nil && n == 0 {
			return err
		}
	}
}

func (s *Stream) openRecord(record []byte) error {
	s.mu.Lock()
	data, err := s.session.Open(record)
	s.mu.Unlock()
	s.have, s.data = 0, data
	if err != nil {
		return s.failRead(err)
	}
	return nil
}

// failRead ends reading, and reports the reason to the peer.
func (s *Stream) failRead(err error) error {
	s.readErr = err
	if err != io.EOF {
		s.sendLast(AlertOf(err))
	}
	return err
}

// Write sends application data, up to MaxPlaintext bytes with one call of the stream underneath. If
// a record could not be sent whole, there is no further one.
func (s *Stream) Write(b []byte) (int, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	written := 0
	for {
		n := min(len(b)-written, MaxPlaintext)
		if err := s.writeRecord(b[written : written+n]); err != nil {
			return written, err
		}
		if written += n; written == len(b) {
			return written, nil
		}
	}
}

// writeRecord sends one record, after a key update if one is due. The caller holds writing.
func (s *Stream) writeRecord(data []byte) error {
	if s.writeErr != nil || len(data) == 0 {
		return s.writeErr
	}
	s.mu.Lock()
	s.output = s.output[:0]
	if s.session.UpdateDue() {
		s.output = s.session.AppendKeyUpdate(s.output)
	}
	start := len(s.output)
	s.output = append(s.output, make([]byte, len(data)+Overhead)...)
	record := s.output[start:]
	copy(record[HeaderBytes:], data)
	sealed := s.session.Seal(record, len(data))
	failure := s.session.failure
	s.mu.Unlock()
	if sealed == 0 {
		if failure == nil || failure == io.EOF {
			failure = net.ErrClosed // after CloseWrite
		}
		s.writeErr = failure
		return failure
	}
	return s.writeOutput()
}

// writeOutput sends what has been sealed. The caller holds writing.
func (s *Stream) writeOutput() error {
	_, err := s.Stream.Write(s.output)
	if err != nil {
		s.writeErr = err
	}
	return err
}

// CloseWrite tells the peer that this side will not send more. The peer may.
func (s *Stream) CloseWrite() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.detached {
		return errDetached
	}
	if s.writeErr == nil {
		s.mu.Lock()
		s.output = s.session.AppendAlert(s.output[:0], CloseNotify)
		s.mu.Unlock()
		if len(s.output) > 0 {
			if err := s.writeOutput(); err != nil {
				return err
			}
		}
	}
	return s.Stream.CloseWrite()
}

// Close closes the stream. Unless something else is being written, it tells the peer first.
func (s *Stream) Close() error {
	s.sendLast(CloseNotify)
	s.mu.Lock()
	if s.detached {
		s.mu.Unlock()
		return errDetached
	}
	s.session.Clear()
	s.mu.Unlock()
	return s.Stream.Close()
}

// sendLast tries to send an alert, and leaves the stream unfit for writing.
func (s *Stream) sendLast(alert Alert) {
	if !s.writing.TryLock() {
		return
	}
	defer s.writing.Unlock()
	if s.writeErr != nil {
		return
	}
	s.mu.Lock()
	s.output = s.session.AppendAlert(s.output[:0], alert)
	s.mu.Unlock()
	if len(s.output) > 0 {
		_ = s.Stream.SetWriteDeadline(time.Now().Add(lastRecordTimeout))
		_ = s.writeOutput()
	}
}

// Detach ends the use of s, while no call is in progress. It returns the stream underneath, the
// session, which the caller has to clear, and what has arrived and was not read: application data,
// and a part of a record that has not arrived whole. At most one of these is not empty.
func (s *Stream) Detach() (
	stream network.Stream, session *Session, plaintext, partial []byte,
) {
	s.reading.Lock()
	defer s.reading.Unlock()
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	plaintext, partial = s.data, s.input[:s.have]
	stream, session = s.Stream, s.session
	s.data, s.have = nil, 0
	s.readErr, s.writeErr, s.detached = errDetached, errDetached, true
	return stream, session, plaintext, partial
}
