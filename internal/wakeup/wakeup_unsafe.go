// Package wakeup wakes the thread of another process over a Unix socket that keeps the boundaries
// of messages: a datagram or sequenced-packet socket. Neither side blocks, whatever the other does.
package wakeup

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// MaxSignals bounds the messages that a thread receives at once. A peer that sends without end
// keeps the descriptor readable, but cannot keep the thread.
const MaxSignals = 16

// Signal is the message that Send sends.
var Signal = []byte{1}

// Send wakes the thread that listens at the other end of a socket. If the socket is full, the
// thread has signals already; if it is broken, nobody listens. Send may be called concurrently.
func Send(descriptor int) {
	_ = unix.Send(descriptor, Signal, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

// Listener receives signals, one at a time. Its fields are what the kernel writes to, so that no
// call allocates. It belongs to the thread that reads from the socket.
type Listener struct {
	buffer [8]byte
	header unix.Msghdr
	vector unix.Iovec
}

// Peek examines the next message without receiving it, and returns its length, at most 8.
// carriesDescriptors reports that it must not be received, nor its socket closed by a thread that
// has to go on: closing what it carries may take as long as the peer likes. Without a message, the
// error is EAGAIN.
func (l *Listener) Peek(descriptor int) (length int, carriesDescriptors bool, err unix.Errno) {
	l.vector = unix.Iovec{Base: &l.buffer[0], Len: uint64(len(l.buffer))}
	l.header = unix.Msghdr{Iov: &l.vector, Iovlen: 1}
	// unix.Recvmsg allocates. The header has no room for descriptors, which sets MSG_CTRUNC.
	n, _, err := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(descriptor),
		uintptr(unsafe.Pointer(&l.header)), unix.MSG_PEEK|unix.MSG_DONTWAIT)
	if err != 0 {
		return 0, false, err
	}
	return int(n), l.header.Flags&unix.MSG_CTRUNC != 0, 0
}

// Receive receives the message that Peek has examined.
func (l *Listener) Receive(descriptor int) {
	_, _, _ = unix.RawSyscall(unix.SYS_READ, uintptr(descriptor),
		uintptr(unsafe.Pointer(&l.buffer[0])), uintptr(len(l.buffer)))
}
