// SPDX-License-Identifier: Apache-2.0

// Package linux has the parts of the kernel's interface that Go's packages lack, or offer in a way
// that allocates or blocks.
package linux

import (
	"iter"
	"unsafe"

	"golang.org/x/sys/unix"
)

// rawTransferBytes is the largest transfer made by a raw system call, which bypasses the Go
// scheduler. That saves 50 ns, but stopping the world, for instance for a garbage collection, has
// to wait until the call returns. Calls here never block, so they take as long as the kernel needs
// to copy; on loopback, sending also runs the receiver's TCP. For rawTransferBytes that is about
// ten microseconds. In larger transfers, 50 ns do not matter. The tail of a Receive is not counted:
// it is no longer than that.
const rawTransferBytes = 32 << 10

// MaxVectors bounds the vectors of a Gather.
const MaxVectors = 128

// Gather is a list of vectors, pieces of memory that Send sends in order. The memory must stay
// where it is until it has been sent, and be kept alive by others.
type Gather struct {
	vectors [MaxVectors]unix.Iovec
	first   int // the first vector that has not been sent completely
	count   int
	bytes   int // not sent yet
}

// Reset empties the list.
func (g *Gather) Reset() { g.first, g.count, g.bytes = 0, 0, 0 }

// Count returns the number of vectors that have been added.
func (g *Gather) Count() int { return g.count }

// Bytes returns the number of bytes that have not been sent.
func (g *Gather) Bytes() int { return g.bytes }

// Add adds a vector. There must be room for it.
func (g *Gather) Add(b []byte) {
	v := &g.vectors[g.count]
	v.Base = unsafe.SliceData(b)
	v.SetLen(len(b))
	g.count++
	g.bytes += len(b)
}

// Extend lengthens the last vector by n bytes, which follow it in memory.
func (g *Gather) Extend(n int) {
	v := &g.vectors[g.count-1]
	v.SetLen(int(v.Len) + n)
	g.bytes += n
}

// Take copies the first bytes that have not been sent to b, as many as fit, and removes them. It
// returns their number. The memory must be accessible.
func (g *Gather) Take(b []byte) (n int) {
	for n < len(b) && g.bytes > 0 {
		v := &g.vectors[g.first]
		taken := copy(b[n:], unsafe.Slice(v.Base, v.Len))
		n += taken
		g.Advance(taken)
	}
	return n
}

// Advance removes the first n bytes, which have been sent.
func (g *Gather) Advance(n int) {
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

// Vectors returns what has not been sent.
func (g *Gather) Vectors() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for _, v := range g.vectors[g.first:g.count] {
			if !yield(unsafe.Slice(v.Base, v.Len)) {
				return
			}
		}
	}
}

// Send sends as much of g as fits into the send buffer, and returns the number of bytes. EFAULT
// means that the owner of some memory has made it inaccessible.
func Send(descriptor int, g *Gather) (int, unix.Errno) {
	header := unix.Msghdr{Iov: &g.vectors[g.first]}
	header.SetIovlen(g.count - g.first)
	return transfer(unix.SYS_SENDMSG, descriptor, &header,
		unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, g.bytes)
}

// Write sends as much of b as fits into the send buffer, and returns the number of bytes.
func Write(descriptor int, b []byte) (int, unix.Errno) {
	vector := unix.Iovec{Base: unsafe.SliceData(b)}
	vector.SetLen(len(b))
	header := unix.Msghdr{Iov: &vector}
	header.SetIovlen(1)
	return transfer(unix.SYS_SENDMSG, descriptor, &header,
		unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, len(b))
}

// Receive reads into target and, once that is full, into tail. It returns the total number of
// bytes, 0 at the end of the input.
func Receive(descriptor int, target, tail []byte) (int, unix.Errno) {
	var vectors [2]unix.Iovec
	vectors[0].Base = unsafe.SliceData(target)
	vectors[0].SetLen(len(target))
	vectors[1].Base = unsafe.SliceData(tail)
	vectors[1].SetLen(len(tail))
	header := unix.Msghdr{Iov: &vectors[0]}
	header.SetIovlen(len(vectors))
	return transfer(unix.SYS_RECVMSG, descriptor, &header, unix.MSG_DONTWAIT, len(target))
}

// transfer makes a system call, raw or not depending on size, the expected number of bytes.
func transfer(call uintptr, descriptor int, header *unix.Msghdr,
	flags, size int) (int, unix.Errno) {
	for {
		var n uintptr
		var err unix.Errno
		if size <= rawTransferBytes {
			n, _, err = unix.RawSyscall(call,
				uintptr(descriptor), uintptr(unsafe.Pointer(header)), uintptr(flags))
		} else {
			n, _, err = unix.Syscall(call,
				uintptr(descriptor), uintptr(unsafe.Pointer(header)), uintptr(flags))
		}
		switch err {
		case 0:
			return int(n), 0
		case unix.EINTR:
		default:
			return 0, err
		}
	}
}
