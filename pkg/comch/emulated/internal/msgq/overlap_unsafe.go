// SPDX-License-Identifier: Apache-2.0

package msgq

import "unsafe"

// overlap reports whether two ranges share an address.
func overlap(a, b []byte) bool {
	if len(a) == 0 || len(b) == 0 {
		return false
	}
	startA, startB := uintptr(unsafe.Pointer(&a[0])), uintptr(unsafe.Pointer(&b[0]))
	return startA < startB+uintptr(len(b)) && startB < startA+uintptr(len(a))
}
