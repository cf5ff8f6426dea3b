// SPDX-License-Identifier: Apache-2.0

//go:build amd64

// Package blockcopy copies blocks to and from memory that is too large for the caches, faster than
// copy does.
package blockcopy

import (
	"unsafe"

	"golang.org/x/sys/cpu"

	"github.com/zc-relay/zc-relay/internal/prefetch"
)

const (
	// smallest is the least that is worth another way of copying.
	smallest = 1 << 10
	// large is from where on the processor's own look-ahead within a block is better than ours to
	// the next one.
	large = 64 << 10
	// beginning is how much of the block behind a large one is worth loading ahead.
	beginning = 512
	// stepBytes is what moveAhead copies in a step.
	stepBytes = 128
)

// Store copies src, from the caches, to dst, as copy does, but does not wait until the lines that
// it overwrites have been read.
func Store(dst, src []byte) {
	n := min(len(dst), len(src))
	if n < smallest || !cpu.X86.HasERMS || overlap(dst[:n], src[:n]) {
		copy(dst, src)
		return
	}
	repeatMove(unsafe.SliceData(dst), unsafe.SliceData(src), n)
}

// Load copies src to dst, in the caches, as copy does, and meanwhile starts to load next, which it
// may copy next. Loading next never faults, so next need not be readable.
func Load(dst, src, next []byte) {
	n := min(len(dst), len(src))
	switch {
	case n < smallest || overlap(dst[:n], src[:n]):
	case n >= large && cpu.X86.HasERMS:
		prefetch.Memory(next[:min(len(next), beginning)])
		repeatMove(unsafe.SliceData(dst), unsafe.SliceData(src), n)
		return
	case cpu.X86.HasAVX:
		if ahead := min(n, len(next)) &^ (stepBytes - 1); ahead > 0 {
			moveAhead(unsafe.SliceData(dst), unsafe.SliceData(src), unsafe.SliceData(next), ahead)
			dst, src = dst[ahead:], src[ahead:]
		}
	}
	copy(dst, src)
}

func overlap(a, b []byte) bool {
	first, second := uintptr(unsafe.Pointer(unsafe.SliceData(a))),
		uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return first < second+uintptr(len(b)) && second < first+uintptr(len(a))
}

// repeatMove copies count bytes by REP MOVSB. Processors with "enhanced REP MOVSB" know from its
// beginning how much it writes.
//
//go:noescape
func repeatMove(dst, src *byte, count int)

// moveAhead copies count bytes, a multiple of stepBytes, and requests as many bytes from next on,
// step by step, so that the core always has as many requests in flight as it supports.
//
//go:noescape
func moveAhead(dst, src, next *byte, count int)
