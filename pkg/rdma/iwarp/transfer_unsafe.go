// SPDX-License-Identifier: Apache-2.0

package iwarp

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/linux"
	"github.com/zc-relay/zc-relay/pkg/network"
)

// send sends as much as fits into the send buffer, removes it from g, and returns the number of
// bytes. EFAULT means that the owner of some memory has made it inaccessible, which can happen only
// if some is untrusted.
func (s *socket) send(g *linux.Gather, untrusted bool) (n int, err errno) {
	switch {
	case s.tls != nil:
		return s.sendRecords(g, untrusted)
	case s.stream != nil:
		n, err = sendStream(s.stream, g)
	default:
		n, err = linux.Send(s.descriptor, g)
	}
	g.Advance(n)
	return n, err
}

// write sends as much of b as fits into the send buffer, without TLS.
func (s *socket) write(b []byte) (int, errno) {
	if s.stream != nil {
		return s.stream.TryWrite(b)
	}
	return linux.Write(s.descriptor, b)
}

// receiveInto reads into target and, once that is full, into tail. It returns the total number of
// bytes.
func (s *socket) receiveInto(target, tail []byte) (int, errno) {
	if s.stream != nil {
		return receiveStream(s.stream, target, tail)
	}
	return linux.Receive(s.descriptor, target, tail)
}

// receive reads into a staging buffer. The call is always raw: the buffer's size bounds its
// duration, and mostly it finds little or no input. With TLS, what it reads are records.
func (s *socket) receive(b []byte) (int, errno) {
	if s.stream != nil {
		return s.stream.TryRead(b)
	}
	n, _, err := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(s.descriptor),
		uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), unix.MSG_DONTWAIT, 0, 0)
	if err != 0 {
		return 0, err
	}
	return int(n), 0
}

// sendStream does what send does for a socket.
func sendStream(stream network.Pollable, g *linux.Gather) (sent int, err errno) {
	for b := range g.Vectors() {
		n, err := stream.TryWrite(b)
		sent += n
		if err != 0 && sent == 0 {
			return 0, err
		}
		if err != 0 || n < len(b) {
			break
		}
	}
	return sent, 0
}

// receiveStream does what receiveInto does for a socket.
func receiveStream(stream network.Pollable, target, tail []byte) (int, errno) {
	n, err := stream.TryRead(target)
	if err != 0 || n < len(target) {
		return n, err
	}
	// An error, or the end of the stream, comes again.
	more, _ := stream.TryRead(tail)
	return n + more, 0
}
