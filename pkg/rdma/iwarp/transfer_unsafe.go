package iwarp

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// How the data path enters the kernel. A raw system call keeps its processor
// from the Go scheduler: cheap, but a stop of the world, for a garbage
// collection for instance, has to wait for it. Sockets here never block, so
// the wait is the time that the kernel takes to copy; on loopback, sending
// also runs the receiver's TCP. Up to rawTransferBytes that is some ten
// microseconds, and the 50 ns that announcing a system call to the scheduler
// costs would be felt. Larger transfers take long enough to be announced.
const rawTransferBytes = 32 << 10

// maxVectors bounds the pieces of memory that one system call sends.
const maxVectors = 128

// gather is a list of memory pieces to be sent in order.
type gather struct {
	vectors [maxVectors]unix.Iovec
	first   int // the first that is not entirely sent
	count   int
	bytes   int // not yet sent
}

func (g *gather) reset() { g.first, g.count, g.bytes = 0, 0, 0 }

func (g *gather) add(b []byte) {
	v := &g.vectors[g.count]
	v.Base = unsafe.SliceData(b)
	v.SetLen(len(b))
	g.count++
	g.bytes += len(b)
}

// extend lengthens the last piece by n bytes that follow it in memory.
func (g *gather) extend(n int) {
	v := &g.vectors[g.count-1]
	v.SetLen(int(v.Len) + n)
	g.bytes += n
}

// advance takes n sent bytes off the front.
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

// send hands as much as fits to the socket. EFAULT means that a piece lies in
// memory that its owner took away.
func (s socket) send(g *gather) (int, errno) {
	header := unix.Msghdr{Iov: &g.vectors[g.first]}
	header.SetIovlen(g.count - g.first)
	return transfer(unix.SYS_SENDMSG, s.descriptor, &header, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, g.bytes)
}

// receiveInto reads straight into target, and what follows it into tail. It
// returns how many bytes both got.
func (s socket) receiveInto(target, tail []byte) (int, errno) {
	var vectors [2]unix.Iovec
	vectors[0].Base = unsafe.SliceData(target)
	vectors[0].SetLen(len(target))
	vectors[1].Base = unsafe.SliceData(tail)
	vectors[1].SetLen(len(tail))
	header := unix.Msghdr{Iov: &vectors[0]}
	header.SetIovlen(len(vectors))
	return transfer(unix.SYS_RECVMSG, s.descriptor, &header, unix.MSG_DONTWAIT, len(target))
}

func transfer(call uintptr, descriptor int, header *unix.Msghdr, flags, size int) (int, errno) {
	var n uintptr
	var err unix.Errno
	if size <= rawTransferBytes {
		n, _, err = unix.RawSyscall(call, uintptr(descriptor), uintptr(unsafe.Pointer(header)), uintptr(flags))
	} else {
		n, _, err = unix.Syscall(call, uintptr(descriptor), uintptr(unsafe.Pointer(header)), uintptr(flags))
	}
	if err != 0 {
		return 0, err
	}
	return int(n), 0
}

// receive reads into a staging buffer, which bounds how long it can take. It
// mostly finds little or nothing.
func (s socket) receive(b []byte) (int, errno) {
	n, _, err := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(s.descriptor), uintptr(unsafe.Pointer(unsafe.SliceData(b))),
		uintptr(len(b)), unix.MSG_DONTWAIT, 0, 0)
	if err != 0 {
		return 0, err
	}
	return int(n), 0
}
