package iwarp

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/network"
)

// rawTransferBytes is the largest transfer made by a raw system call, which bypasses the Go
// scheduler. That saves 50 ns, but stopping the world, for instance for a garbage collection, has
// to wait until the call returns. Sockets here never block, so the call takes as long as the kernel
// needs to copy; on loopback, sending also runs the receiver's TCP. For rawTransferBytes that is
// about ten microseconds. In larger transfers, 50 ns do not matter.
const rawTransferBytes = 32 << 10

// maxVectors bounds the vectors of one system call.
const maxVectors = 128

// gather is a list of vectors, pieces of memory that are sent in order.
type gather struct {
	vectors [maxVectors]unix.Iovec
	first   int // the first vector that has not been sent completely
	count   int
	bytes   int // not sent yet
}

func (g *gather) reset() { g.first, g.count, g.bytes = 0, 0, 0 }

func (g *gather) add(b []byte) {
	v := &g.vectors[g.count]
	v.Base = unsafe.SliceData(b)
	v.SetLen(len(b))
	g.count++
	g.bytes += len(b)
}

// extend lengthens the last vector by n bytes, which follow it in memory.
func (g *gather) extend(n int) {
	v := &g.vectors[g.count-1]
	v.SetLen(int(v.Len) + n)
	g.bytes += n
}

// advance removes the first n bytes, which have been sent.
func (g *gather) advance(n int) {
	g.bytes -= n
	for n > 0 {
		v := &g.vectors[g.first]
		if n < int(v.Len) {
			v.Base = (*byte)(unsafe.Add(unsafe.Pointer(v.Base), n))
			v.SetLen(int(v.Len) - n)
			return
		}
		n -= int(v.Len)
		g.first++
	}
}

// send sends as much as fits into the send buffer, and returns the number of bytes. EFAULT means
// that the owner of some memory has made it inaccessible.
func (s *socket) send(g *gather) (int, errno) {
	if s.stream != nil {
		return sendStream(s.stream, g)
	}
	header := unix.Msghdr{Iov: &g.vectors[g.first]}
	header.SetIovlen(g.count - g.first)
	return transfer(unix.SYS_SENDMSG, s.descriptor, &header,
		unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, g.bytes)
}

// receiveInto reads into target and, once that is full, into tail. It returns the total number of
// bytes.
func (s *socket) receiveInto(target, tail []byte) (int, errno) {
	if s.stream != nil {
		return receiveStream(s.stream, target, tail)
	}
	var vectors [2]unix.Iovec
	vectors[0].Base = unsafe.SliceData(target)
	vectors[0].SetLen(len(target))
	vectors[1].Base = unsafe.SliceData(tail)
	vectors[1].SetLen(len(tail))
	header := unix.Msghdr{Iov: &vectors[0]}
	header.SetIovlen(len(vectors))
	return transfer(unix.SYS_RECVMSG, s.descriptor, &header, unix.MSG_DONTWAIT, len(target))
}

// transfer makes a system call, raw or not depending on size, the expected number of bytes.
func transfer(call uintptr, descriptor int, header *unix.Msghdr, flags, size int) (int, errno) {
	var n uintptr
	var err unix.Errno
	if size <= rawTransferBytes {
		n, _, err = unix.RawSyscall(call,
			uintptr(descriptor), uintptr(unsafe.Pointer(header)), uintptr(flags))
	} else {
		n, _, err = unix.Syscall(call,
			uintptr(descriptor), uintptr(unsafe.Pointer(header)), uintptr(flags))
	}
	if err != 0 {
		return 0, err
	}
	return int(n), 0
}

// receive reads into a staging buffer. The call is always raw: the buffer's size bounds its
// duration, and mostly it finds little or no input.
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
func sendStream(stream network.Pollable, g *gather) (sent int, err errno) {
	for i := g.first; i < g.count; i++ {
		v := &g.vectors[i]
		n, err := stream.TryWrite(unsafe.Slice(v.Base, v.Len))
		sent += n
		if err != 0 && sent == 0 {
			return 0, err
		}
		if err != 0 || n < int(v.Len) {
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
