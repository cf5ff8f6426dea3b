// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"syscall"
	"time"
)

// frameSocket sends and receives frames on a socket. One goroutine may read while another writes.
type frameSocket struct {
	socket Socket
	packet []byte // the packet read last
	passed []int  // descriptors of that packet
	output []byte
}

// maxPassed is how many descriptors the kernel passes with a packet. It closes those that a reader
// has no room for, which keeps the reader waiting as long as the sender likes.
const maxPassed = 253

// maxDescriptors is how many descriptors a frame can carry.
const maxDescriptors = 2

func newFrameSocket(s Socket, maxMessageSize int) *frameSocket {
	return &frameSocket{socket: s,
		packet: make([]byte, frameOverhead+max(maxMessageSize, maxTextLength)),
		passed: make([]int, maxPassed)}
}

// receiveNoDescriptors makes read leave the descriptors in packets to the socket, which closes
// them.
func (s *frameSocket) receiveNoDescriptors() { s.passed = nil }

func (s *frameSocket) receiveDescriptors() { s.passed = make([]int, maxPassed) }

// read waits for the next frame. Its body is valid until the next read. The caller owns the
// descriptors, even if there is an error. io.EOF means that the peer has closed its end.
func (s *frameSocket) read() (frame, descriptors, error) {
	n, count, err := s.socket.ReadPacket(s.packet, s.passed)
	if errors.Is(err, syscall.ECONNRESET) {
		// The peer died without reading all our packets. What it sent is still queued.
		n, count, err = s.socket.ReadPacket(s.packet, s.passed)
	}
	received := descriptors{list: slices.Clone(s.passed[:count])}
	switch {
	case errors.Is(err, io.EOF):
		return frame{}, received, err
	case errors.Is(err, ErrTruncated):
		return frame{}, received, violation(
			"packet exceeds %d bytes or %d descriptors, or this process has no free descriptors",
			len(s.packet), maxDescriptors)
	case err != nil:
		return frame{}, received, fmt.Errorf("read from peer: %w", err)
	}
	f, err := parseFrame(s.packet[:n])
	if err == nil && count > frameShapes[f.kind].descriptors {
		err = violation("frame of kind %d carries %d descriptors", f.kind, count)
	}
	return f, received, err
}

// write sends a frame with copies of the descriptors. It waits while the peer's socket is full.
func (s *frameSocket) write(f *frame, passed descriptors) error {
	s.output = f.append(s.output[:0])
	if err := s.socket.WritePacket(s.output, passed.list); err != nil {
		return fmt.Errorf("write to peer: %w", err)
	}
	return nil
}

// setTimeout sets the timeout of reads and writes, starting now; 0 means none.
func (s *frameSocket) setTimeout(timeout time.Duration) {
	var deadline time.Time
	if timeout > 0 {
		deadline = time.Now().Add(timeout)
	}
	_ = s.socket.SetReadDeadline(deadline) // fails only on a closed socket
	_ = s.socket.SetWriteDeadline(deadline)
}

// setWriteTimeout sets the timeout of writes, starting now.
func (s *frameSocket) setWriteTimeout(timeout time.Duration) {
	_ = s.socket.SetWriteDeadline(time.Now().Add(timeout))
}

// setReadTimeout sets the timeout of reads, starting now.
func (s *frameSocket) setReadTimeout(timeout time.Duration) {
	_ = s.socket.SetReadDeadline(time.Now().Add(timeout))
}

func (s *frameSocket) disconnect() { s.socket.Disconnect() }

func (s *frameSocket) hasPeerLeft() bool { return s.socket.HasPeerLeft() }

func (s *frameSocket) close() { _ = s.socket.Close() }
