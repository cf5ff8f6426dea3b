//go:build amd64 || arm64

// Package prefetch asks the processor to bring memory into its caches.
package prefetch

import "unsafe"

// lineBytes is a cache line. Where lines are longer, the same one is asked
// for more than once, which costs little.
const lineBytes = 64

// Memory begins to load b into the caches and does not wait for it. Memory
// that cannot be read is left alone: a prefetch never faults.
//
// It is for what the kernel copies next from all over a large area: its copy
// loop asks for one line after the other, while prefetches keep as many under
// way as the core can have outstanding.
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
