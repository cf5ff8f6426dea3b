// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/seedtest"
)

// Pieces never overlap, and whatever was released can be allocated again as a whole.
func TestBuffersAreDisjointAndUniteAgain(t *testing.T) {
	const base, unit, largest, count = 1 << 20, 4096, 64 << 10, 3
	seedtest.Check(t, func(t *rapid.T) {
		b := newBuffers(base, count*largest, unit, largest)
		var pieces []piece
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			if len(pieces) > 0 && rapid.Bool().Draw(t, "release") {
				i := rapid.IntRange(0, len(pieces)-1).Draw(t, "piece")
				b.release(pieces[i].start, pieces[i].size)
				pieces = append(pieces[:i], pieces[i+1:]...)
				continue
			}
			size := rapid.Uint64Range(1, largest).Draw(t, "size")
			start, ok := b.allocate(size)
			if !ok {
				continue
			}
			if start < base || start+size > base+count*largest {
				t.Fatalf("piece [%d, %d) is outside", start, start+size)
			}
			for _, p := range pieces {
				if start < p.start+p.size && p.start < start+size {
					t.Fatalf("piece [%d, %d) overlaps [%d, %d)", start, start+size, p.start,
						p.start+p.size)
				}
			}
			pieces = append(pieces, piece{start, size})
		}
		for _, p := range pieces {
			b.release(p.start, p.size)
		}
		for range count {
			if _, ok := b.allocate(largest); !ok {
				t.Fatal("the memory is fragmented although nothing is in use")
			}
		}
	})
}
