// SPDX-License-Identifier: Apache-2.0

//go:build linux

package iouring

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// setup makes a ring (io_uring_setup(2)).
func setup(entries uint32, params *[paramsSize]byte) (descriptor int, errno unix.Errno) {
	result, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries),
		uintptr(unsafe.Pointer(params)), 0)
	return int(result), errno
}

// enter submits entries and waits for completions (io_uring_enter(2)).
func enter(descriptor int, submit, wait, flags uint32) unix.Errno {
	_, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(descriptor), uintptr(submit),
		uintptr(wait), uintptr(flags), 0, 0)
	return errno
}

// mapShared maps a part of a ring.
func mapShared(descriptor int, offset int64, size int) ([]byte, error) {
	return unix.Mmap(descriptor, offset, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_POPULATE)
}

// word returns a word of a mapping, which the kernel and this process change.
func word(mapping []byte, offset uint32) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&mapping[offset]))
}
