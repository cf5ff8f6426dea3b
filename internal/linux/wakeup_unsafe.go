// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// MaxWakeSignals bounds the messages that a thread receives at once. A peer that sends without end
// keeps the descriptor readable, but cannot keep the thread.
const MaxWakeSignals = 16

// WakeSignal is the message that Wake sends.
var WakeSignal = []byte{1}

// Wake wakes the thread of another process that listens at the other end of a Unix socket that
// keeps the boundaries of messages. It does not block, whatever the other side does. If the socket
// is full, the thread has signals already; if it is broken, nobody listens. Wake may be called
// concurrently.
func Wake(descriptor int) {
	_ = unix.Send(descriptor, WakeSignal, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

// WakeListener receives signals, one at a time. Its fields are what the kernel writes to, so that
// no call allocates. It belongs to the thread that reads from the socket.
type WakeListener struct {
	buffer [8]byte
	header unix.Msghdr
	vector unix.Iovec
}

// Peek examines the next message without receiving it, and returns its length, at most 8.
// carriesDescriptors reports that it must not be received, nor its socket closed by a thread that
// has to go on: closing what it carries may take as long as the peer likes. Without a message, the
// error is EAGAIN.
func (l *WakeListener) Peek(descriptor int) (length int, carriesDescriptors bool, err unix.Errno) {
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
func (l *WakeListener) Receive(descriptor int) {
	_, _, _ = unix.RawSyscall(unix.SYS_READ, uintptr(descriptor),
		uintptr(unsafe.Pointer(&l.buffer[0])), uintptr(len(l.buffer)))
}
