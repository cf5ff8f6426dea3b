// SPDX-License-Identifier: Apache-2.0

// Package recorder keeps what threads record until a reader collects it.
package recorder

import "sync/atomic"

// Recorder keeps entries in memory until a reader collects them. Any number of threads may record
// concurrently; recording neither locks nor allocates. A full recorder loses new entries and counts
// them.
type Recorder[T any] struct {
	places   []place[T]
	mask     uint64
	next     atomic.Uint64 // position of the next entry to record
	lost     atomic.Uint64
	position uint64 // of the next entry to read, for the reader only
}

// place holds every entry whose position is its index modulo the number of places. turn is the
// position of the entry that may be recorded, or one more than that of the entry that may be read.
type place[T any] struct {
	turn  atomic.Uint64
	entry T
}

// New returns a recorder for at least the given number of entries, which must be positive.
func New[T any](entries int) *Recorder[T] {
	size := 2 // with one place, a recorded entry and a free place would look alike
	for size < entries {
		size *= 2
	}
	r := &Recorder[T]{places: make([]place[T], size), mask: uint64(size) - 1}
	for i := range r.places {
		r.places[i].turn.Store(uint64(i))
	}
	return r
}

// Record adds an entry.
func (r *Recorder[T]) Record(entry *T) {
	for {
		position := r.next.Load()
		p := &r.places[position&r.mask]
		switch turn := p.turn.Load(); {
		case turn == position:
			if r.next.CompareAndSwap(position, position+1) {
				p.entry = *entry
				p.turn.Store(position + 1)
				return
			}
		case turn < position: // holds an entry that has not been read
			r.lost.Add(1)
			return
		}
		// Another thread was faster.
	}
}

// Collect fills entries with recorded ones, in order, and returns their number. One goroutine at a
// time may call it.
func (r *Recorder[T]) Collect(entries []T) int {
	for n := range entries {
		p := &r.places[r.position&r.mask]
		if p.turn.Load() != r.position+1 {
			return n
		}
		entries[n] = p.entry
		p.turn.Store(r.position + uint64(len(r.places)))
		r.position++
	}
	return len(entries)
}

// Lost returns how many entries did not fit.
func (r *Recorder[T]) Lost() uint64 { return r.lost.Load() }
