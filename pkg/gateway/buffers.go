// SPDX-License-Identifier: Apache-2.0

package gateway

import "math/bits"

// buffers hands out pieces of a range of memory whose sizes are powers of two (buddy system): small
// ones for many small requests, large ones for few large requests. Pieces that are free unite with
// their neighbors, so that a large one is available whenever little is in use.
type buffers struct {
	base uint64 // of the range, in bytes
	unit uint64 // size of the smallest piece in bytes
	// free has a set of pieces for each order; a piece of order n has 2^n units.
	free []bitmap
	// kept holds pieces that must not be used although they are free.
	kept []piece
}

type piece struct{ start, size uint64 }

// newBuffers returns buffers that manage size bytes from base on. All sizes are powers of two,
// except that size is a multiple of largest.
func newBuffers(base, size, unit, largest uint64) buffers {
	unit = min(unit, largest)
	b := buffers{base: base, unit: unit}
	for n := unit; n <= largest; n *= 2 {
		b.free = append(b.free, newBitmap(int(size/n)))
	}
	top := &b.free[len(b.free)-1]
	for i := range size / largest {
		top.add(int(i))
	}
	return b
}

// order returns the order of the smallest piece with at least size bytes.
func (b *buffers) order(size uint64) int {
	return bits.Len64((size+b.unit-1)/b.unit - 1)
}

// allocate returns a piece of at least size bytes. size is at most the largest piece.
func (b *buffers) allocate(size uint64) (start uint64, ok bool) {
	wanted := b.order(size)
	order, index := wanted, -1
	for ; order < len(b.free); order++ {
		if index = b.free[order].first(); index >= 0 {
			break
		}
	}
	if index < 0 {
		return 0, false
	}
	b.free[order].remove(index)
	for order > wanted {
		order--
		index *= 2
		b.free[order].add(index + 1)
	}
	return b.base + uint64(index)<<wanted*b.unit, true
}

// release frees a piece that allocate has returned for this size.
func (b *buffers) release(start, size uint64) {
	order := b.order(size)
	index := int((start - b.base) / b.unit >> order)
	for ; order < len(b.free)-1 && b.free[order].has(index^1); order++ {
		b.free[order].remove(index ^ 1)
		index /= 2
	}
	b.free[order].add(index)
}

// bitmap is a set of small numbers.
type bitmap []uint64

func newBitmap(size int) bitmap { return make(bitmap, (size+63)/64) }

func (m bitmap) add(i int)      { m[i/64] |= 1 << (i % 64) }
func (m bitmap) remove(i int)   { m[i/64] &^= 1 << (i % 64) }
func (m bitmap) has(i int) bool { return m[i/64]&(1<<(i%64)) != 0 }

// first returns the smallest element, or -1.
func (m bitmap) first() int {
	for i, word := range m {
		if word != 0 {
			return 64*i + bits.TrailingZeros64(word)
		}
	}
	return -1
}
