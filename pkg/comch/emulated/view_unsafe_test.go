// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// bytesOf returns words as bytes.
func bytesOf(words []uint64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), 8*len(words))
}

// disconnect dissolves the association of a datagram socket with its peer.
func disconnect(descriptor int) error {
	address := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(descriptor),
		uintptr(unsafe.Pointer(&address)), unsafe.Sizeof(address.Family))
	if errno != 0 {
		return errno
	}
	return nil
}
