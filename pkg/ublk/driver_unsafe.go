// SPDX-License-Identifier: Apache-2.0

//go:build linux

package ublk

import (
	"runtime"
	"unsafe"
)

// addressOf returns the address of memory of the Go runtime for the kernel, which may use it until
// pinner unpins it. It is 0 if there is none.
func addressOf(b []byte, pinner *runtime.Pinner) uint64 {
	if len(b) == 0 {
		return 0
	}
	pinner.Pin(&b[0])
	return uint64(uintptr(unsafe.Pointer(&b[0])))
}

// mappedAddress returns the address of memory that is mapped, which the Go runtime does not manage.
func mappedAddress(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
