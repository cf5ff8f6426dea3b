// SPDX-License-Identifier: Apache-2.0

package networktest

import (
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"
)

// stream is one end of a connection, a network.Pollable. Network.mu guards it.
type stream struct {
	network       *Network
	host          *Host
	local, remote netip.AddrPort
	in, out       *Flow
	changed       signal

	closed        bool
	failure       syscall.Errno // why the connection has failed
	abortive      bool          // Close resets the connection
	readDeadline  time.Time
	writeDeadline time.Time
}

// fail ends the connection for this end. What it has in flight is lost.
func (s *stream) fail(errno syscall.Errno) {
	if s.failure == 0 {
		s.failure = errno
	}
	s.out.drop()
	s.changed.wake()
}

// drop takes everything out of flight.
func (f *Flow) drop() {
	f.data = f.data[:f.arrived]
	if f.end == inFlight {
		f.end = unsent
	}
	if f.reset == inFlight {
		f.reset = unsent
	}
}

// tryRead is TryRead without the lock. The end of the stream is io.EOF only in Read.
func (s *stream) tryRead(b []byte) (int, syscall.Errno) {
	f := s.in
	switch {
	case s.closed:
		return 0, syscall.EBADF
	case f.arrived > 0:
		n := copy(b, f.data[:f.arrived])
		f.data = f.data[n:]
		f.arrived -= n
		f.writer.changed.wake()
		return n, 0
	case f.end == delivered:
		return 0, 0
	case s.failure != 0:
		return 0, s.failure
	}
	return 0, syscall.EAGAIN
}

// tryWrite is TryWrite without the lock, and without the transmission.
func (s *stream) tryWrite(b []byte) (int, syscall.Errno) {
	f := s.out
	switch {
	case s.closed:
		return 0, syscall.EBADF
	case s.failure != 0:
		return 0, s.failure
	case f.end != unsent:
		return 0, syscall.EPIPE
	}
	n := min(len(b), s.network.config.BufferBytes-len(f.data))
	if n == 0 && len(b) > 0 {
		return 0, syscall.EAGAIN
	}
	f.data = append(f.data, b[:n]...)
	return n, 0
}

// TryRead reads what has been delivered.
func (s *stream) TryRead(b []byte) (int, syscall.Errno) {
	s.network.mu.Lock()
	defer s.network.mu.Unlock()
	return s.tryRead(b)
}

// TryWrite puts as much in flight as the buffer has room for.
func (s *stream) TryWrite(b []byte) (int, syscall.Errno) {
	s.network.mu.Lock()
	n, errno := s.tryWrite(b)
	s.network.mu.Unlock()
	if n > 0 {
		s.network.transmit(s.out)
	}
	return n, errno
}

// Readable reports whether TryRead would return something other than EAGAIN.
func (s *stream) Readable() bool {
	s.network.mu.Lock()
	defer s.network.mu.Unlock()
	return s.closed || s.in.arrived > 0 || s.in.end == delivered || s.failure != 0
}

// Writable reports whether TryWrite would return something other than EAGAIN.
func (s *stream) Writable() bool {
	s.network.mu.Lock()
	defer s.network.mu.Unlock()
	return s.closed || s.failure != 0 || s.out.end != unsent ||
		len(s.out.data) < s.network.config.BufferBytes
}

// Read waits until something has been delivered.
func (s *stream) Read(b []byte) (int, error) {
	n, err := s.wait("read", &s.readDeadline, s.tryRead, b)
	if n == 0 && err == nil && len(b) > 0 {
		return 0, io.EOF
	}
	return n, err
}

// Write waits until the stream has taken all of b.
func (s *stream) Write(b []byte) (written int, err error) {
	for {
		n, err := s.wait("write", &s.writeDeadline, s.tryWrite, b[written:])
		if err != nil {
			return written, err
		}
		if n > 0 {
			s.network.transmit(s.out)
		}
		if written += n; written == len(b) {
			return written, nil
		}
	}
}

// wait calls try until it returns something other than EAGAIN or the deadline has passed. Both may
// change while it waits.
func (s *stream) wait(
	operation string, deadline *time.Time, try func([]byte) (int, syscall.Errno), b []byte,
) (int, error) {
	for {
		s.network.mu.Lock()
		end := *deadline
		expired := !end.IsZero() && !time.Now().Before(end)
		n, errno := 0, syscall.EAGAIN
		if s.closed || !expired {
			n, errno = try(b)
		}
		changed := s.changed.channel()
		s.network.mu.Unlock()
		switch {
		case errno == 0:
			return n, nil
		case errno == syscall.EBADF:
			return 0, s.errorOf(operation, net.ErrClosed)
		case errno != syscall.EAGAIN:
			return 0, s.errorOf(operation, errno)
		case expired:
			return 0, s.errorOf(operation, os.ErrDeadlineExceeded)
		case end.IsZero():
			<-changed
		default:
			timer := time.NewTimer(time.Until(end))
			select {
			case <-changed:
			case <-timer.C:
			}
			timer.Stop()
		}
	}
}

func (s *stream) errorOf(operation string, err error) error {
	return errorOf(operation, s.local, s.remote, err)
}

// CloseWrite puts the end of the stream in flight.
func (s *stream) CloseWrite() error {
	s.network.mu.Lock()
	err := s.state()
	if err == nil && s.out.end == unsent {
		s.out.end = inFlight
	}
	s.changed.wake()
	s.network.mu.Unlock()
	if err != nil {
		return s.errorOf("close", err)
	}
	s.network.transmit(s.out)
	return nil
}

// state returns the error of an operation that needs a connection.
func (s *stream) state() error {
	switch {
	case s.closed:
		return net.ErrClosed
	case s.failure != 0:
		return syscall.ENOTCONN
	}
	return nil
}

// Close ends both directions. It resets the connection after SetLinger(0), and, like Linux, if
// something that has arrived was not read.
func (s *stream) Close() error {
	s.network.mu.Lock()
	if s.closed {
		s.network.mu.Unlock()
		return s.errorOf("close", net.ErrClosed)
	}
	connected := s.failure == 0
	switch {
	case !connected:
	case s.abortive || s.in.arrived > 0:
		if !s.network.config.ResetsFollow {
			s.out.drop()
		}
		s.out.reset = inFlight
	case s.out.end == unsent:
		s.out.end = inFlight
	}
	s.closed = true
	s.in.data, s.in.arrived = s.in.data[s.in.arrived:], 0
	s.changed.wake()
	s.in.writer.changed.wake()
	if s.in.writer.closed {
		s.network.disconnect(s)
	}
	s.network.mu.Unlock()
	if connected {
		s.network.transmit(s.out)
	}
	return nil
}

// SetLinger sets whether Close resets the connection: it does if seconds is 0.
func (s *stream) SetLinger(seconds int) error {
	s.network.mu.Lock()
	defer s.network.mu.Unlock()
	s.abortive = seconds == 0
	return s.state()
}

// LocalAddr returns the address of this end.
func (s *stream) LocalAddr() net.Addr { return net.TCPAddrFromAddrPort(s.local) }

// RemoteAddr returns the address of the other end.
func (s *stream) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(s.remote) }

// SetDeadline sets both deadlines. They do not concern TryRead and TryWrite.
func (s *stream) SetDeadline(t time.Time) error { return s.setDeadlines(t, true, true) }

// SetReadDeadline sets the deadline of Read.
func (s *stream) SetReadDeadline(t time.Time) error { return s.setDeadlines(t, true, false) }

// SetWriteDeadline sets the deadline of Write.
func (s *stream) SetWriteDeadline(t time.Time) error { return s.setDeadlines(t, false, true) }

func (s *stream) setDeadlines(t time.Time, read, write bool) error {
	s.network.mu.Lock()
	defer s.network.mu.Unlock()
	if s.closed {
		return s.errorOf("set", net.ErrClosed)
	}
	if read {
		s.readDeadline = t
	}
	if write {
		s.writeDeadline = t
	}
	s.changed.wake()
	return nil
}
