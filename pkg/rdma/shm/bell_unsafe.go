package shm

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// bell is the socket of a connection after the handshake: each packet wakes its receiver, and its
// end shows that the peer has ended or died. It belongs to the thread of the completion queue.
type bell struct {
	descriptor int
	buffer     [8]byte
	header     unix.Msghdr // for peek
	vector     unix.Iovec
}

// maxSignals bounds the packets that one check receives. A peer that rings without end keeps the
// descriptor readable, but cannot keep the thread.
const maxSignals = 16

var signal = []byte{1}

// ring wakes the peer. If the socket is full, the bell is ringing already; if it is broken, nobody
// listens.
func (b *bell) ring() {
	_ = unix.Send(b.descriptor, signal, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

// check receives what has arrived and reports whether the peer has closed its end, or sends what it
// must not: packets with descriptors, whose closing may take as long as the peer likes.
func (b *bell) check() (ended bool) {
	for range maxSignals {
		n, flags, err := b.peek()
		switch {
		case err == unix.EAGAIN:
			return false
		case err != 0 || n == 0 || flags&unix.MSG_CTRUNC != 0:
			return true
		}
		// Only this thread reads from the socket: this is the packet just seen.
		_, _, _ = unix.RawSyscall(unix.SYS_READ, uintptr(b.descriptor),
			uintptr(unsafe.Pointer(&b.buffer[0])), uintptr(len(b.buffer)))
	}
	return false
}

// peek examines the next packet without receiving it. The flags include MSG_CTRUNC if it carries
// descriptors, because the header has no room for them.
func (b *bell) peek() (length int, flags int32, code unix.Errno) {
	b.vector = unix.Iovec{Base: &b.buffer[0], Len: uint64(len(b.buffer))}
	b.header = unix.Msghdr{Iov: &b.vector, Iovlen: 1}
	n, _, code := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(b.descriptor),
		uintptr(unsafe.Pointer(&b.header)), unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return int(n), b.header.Flags, code
}

// close tells the peer that this side has ended. Packets that remain may hold descriptors of the
// peer, so a goroutine closes them.
func (b *bell) close() {
	_ = unix.Shutdown(b.descriptor, unix.SHUT_RDWR)
	n, _, code := b.peek()
	if code == 0 && n > 0 {
		go unix.Close(b.descriptor)
	} else {
		_ = unix.Close(b.descriptor)
	}
	b.descriptor = -1
}
