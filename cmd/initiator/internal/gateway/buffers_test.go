package gateway

import (
	"testing"

	"pgregory.net/rapid"
)

// Pieces never overlap, and whatever was released can be allocated again as a whole.
func TestBuffersAreDisjointAndUniteAgain(t *testing.T) {
	const base, unit, largest, count = 1 << 20, 4096, 64 << 10, 3
	rapid.Check(t, func(t *rapid.T) {
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

func TestRangesAreGrantedInOrder(t *testing.T) {
	var l rangeLocks
	granted := ""
	hold := func(name string, start, end uint64, exclusive bool) *rangeHold {
		return &rangeHold{start: start, end: end, isExclusive: exclusive,
			granted: func() { granted += name }}
	}
	a, b := hold("a", 0, 10, false), hold("b", 5, 15, false)
	c, d, e := hold("c", 8, 9, true), hold("d", 8, 9, false), hold("e", 20, 30, true)
	if !l.lock(a) || !l.lock(b) {
		t.Fatal("shared holds exclude each other")
	}
	if l.lock(c) || l.lock(d) {
		t.Fatal("an exclusive hold is granted beside others, or overtaken")
	}
	if !l.lock(e) {
		t.Fatal("a range that nobody holds is not granted")
	}
	l.unlock(a)
	if granted != "" {
		t.Fatalf("granted %q", granted)
	}
	l.unlock(b)
	l.unlock(c)
	l.unlock(d)
	l.unlock(e)
	if granted != "cd" {
		t.Errorf("granted %q, want c, then d", granted)
	}
	if l.exclusive != 0 || l.held.next != &l.held {
		t.Error("something is still held")
	}
}
