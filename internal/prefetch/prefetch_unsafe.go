// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

// Package prefetch asks the processor to bring memory into its caches.
package prefetch

import "unsafe"

// lineBytes is the size of a cache line. If lines are longer, each is requested several times,
// which costs little.
const lineBytes = 64

// Memory starts to load b into the caches and does not wait for it. A prefetch never faults, so b
// need not be readable.
//
// It is for memory that the kernel copies next, scattered over a large area: its copy loop requests
// one line after the other, while prefetches keep as many requests in flight as the core supports.
func Memory(b []byte) {
	if len(b) == 0 {
		return
	}
	first := unsafe.Pointer(unsafe.SliceData(b))
	into := int(uintptr(first) % lineBytes)
	lines((*byte)(first), (into+len(b)+lineBytes-1)/lineBytes)
}

// lines prefetches count lines from the one that first lies in.
//
//go:noescape
func lines(first *byte, count int)
