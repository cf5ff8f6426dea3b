// SPDX-License-Identifier: Apache-2.0

package memory

import "unsafe"

// baseOf returns the virtual address of the first byte.
func baseOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// contains reports whether a virtual address lies within the mapping.
func (r *Region) contains(address uintptr) bool {
	start := uintptr(unsafe.Pointer(unsafe.SliceData(r.bytes)))
	return address >= start && address-start < uintptr(len(r.bytes))
}

// offsetOf returns the offset of a virtual address that the mapping contains.
func (r *Region) offsetOf(address uintptr) uint64 {
	return uint64(address - uintptr(unsafe.Pointer(unsafe.SliceData(r.bytes))))
}
