// SPDX-License-Identifier: Apache-2.0

package rangelock

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/seedtest"
)

func TestRangesAreGrantedInOrder(t *testing.T) {
	var l Locks
	granted := ""
	newRange := func(name string, start, end uint64) *Range {
		return &Range{Start: start, End: end, Granted: func() { granted += name }}
	}
	a, b, c := newRange("a", 0, 10), newRange("b", 5, 15), newRange("c", 8, 9)
	d, e := newRange("d", 12, 14), newRange("e", 20, 30)
	if !l.Lock(a) || l.Lock(b) || l.Lock(c) {
		t.Fatal("ranges that overlap are held at the same time")
	}
	if l.Lock(d) {
		t.Fatal("a hold that waits is overtaken")
	}
	if !l.Lock(e) {
		t.Fatal("a range that nobody holds is not granted")
	}
	for _, r := range []*Range{a, b, c, d, e} {
		l.Unlock(r)
	}
	if granted != "bcd" {
		t.Errorf("granted %q, want b, c, and d", granted)
	}
}

func TestReadsWaitForOrphansOnly(t *testing.T) {
	var l Locks
	change := &Range{Start: 0, End: 10}
	l.Lock(change)
	granted := false
	read := &Range{Start: 5, End: 6, IsRead: true, Granted: func() { granted = true }}
	if !l.Lock(read) {
		t.Fatal("a read waits for a change whose owner lives")
	}
	l.Orphan(change)
	if l.Lock(read) {
		t.Fatal("a read does not wait for an orphan")
	}
	if !l.Lock(&Range{Start: 10, End: 11, IsRead: true}) {
		t.Fatal("a read waits for an orphan elsewhere")
	}
	l.Lock(&Range{Start: 20, End: 30})
	if !l.Lock(&Range{Start: 25, End: 26, IsRead: true}) {
		t.Fatal("a read waits for a change whose owner lives, because of an orphan elsewhere")
	}
	if l.Unlock(change); !granted || !l.Lock(read) {
		t.Error("a read waits although the orphan has gone")
	}
}

// A change waits for those that overlap it and wait longer, until they are withdrawn.
func TestWhoWaitsLongerGoesFirst(t *testing.T) {
	var l Locks
	granted := ""
	newRange := func(name string, start, end uint64) *Range {
		return &Range{Start: start, End: end, Granted: func() { granted += name }}
	}
	a, b, c := newRange("a", 0, 10), newRange("b", 5, 15), newRange("c", 12, 20)
	d, e := newRange("d", 18, 25), newRange("e", 17, 18)
	if !l.Lock(a) || !l.Lock(d) || l.Lock(b) || l.Lock(c) || l.Lock(e) {
		t.Fatal("other ranges are held than a and d")
	}
	if l.Unlock(d); granted != "" {
		t.Fatalf("granted %q although b waits longer", granted)
	}
	if !l.Withdraw(b) || granted != "c" {
		t.Fatalf("granted %q when b was withdrawn, want c", granted)
	}
	l.Unlock(a)
	if l.Unlock(c); granted != "ce" {
		t.Errorf("granted %q, want c and e", granted)
	}
	l.Unlock(e)
}

func TestAnUnlockedRangeIsGrantedToAllWhoCanHaveIt(t *testing.T) {
	var l Locks
	granted := ""
	newRange := func(name string, start, end uint64) *Range {
		return &Range{Start: start, End: end, Granted: func() { granted += name }}
	}
	all := newRange("all", 0, 10)
	if !l.Lock(all) || l.Lock(newRange("a", 0, 2)) || l.Lock(newRange("b", 1, 3)) ||
		l.Lock(newRange("c", 3, 5)) {
		t.Fatal("ranges are held that overlap")
	}
	if l.Unlock(all); granted != "ac" {
		t.Errorf("granted %q, want a and c", granted)
	}
}

// model is what Locks must do: it looks at every pair.
type model struct {
	held, waiting []*Range
}

func (m *model) mustWait(r *Range, before []*Range) bool {
	return slices.ContainsFunc(m.held, func(o *Range) bool {
		return overlap(r, o) && (!r.IsRead || o.isOrphan)
	}) || slices.ContainsFunc(before, func(o *Range) bool {
		return overlap(r, o) && !r.IsRead && !o.IsRead
	})
}

func (m *model) grant() (granted []*Range) {
	for i := 0; i < len(m.waiting); {
		r := m.waiting[i]
		if m.mustWait(r, m.waiting[:i]) {
			i++
			continue
		}
		m.waiting = slices.Delete(m.waiting, i, i+1)
		granted = append(granted, r)
		if !r.IsRead {
			m.held = append(m.held, r)
		}
	}
	return granted
}

func TestLocksDoWhatTheirModelDoes(t *testing.T) {
	seedtest.Check(t, func(t *rapid.T) {
		var l Locks
		var m model
		var granted []*Range
		remove := func(from []*Range) ([]*Range, *Range) {
			if len(from) == 0 {
				t.Skip("there is none")
			}
			i := rapid.IntRange(0, len(from)-1).Draw(t, "which")
			r := from[i]
			return slices.Delete(slices.Clone(from), i, i+1), r
		}
		check := func() {
			if want := m.grant(); !slices.Equal(granted, want) {
				t.Fatalf("granted %d holds, want %d", len(granted), len(want))
			}
			granted = nil
		}
		t.Repeat(map[string]func(*rapid.T){
			"lock": func(t *rapid.T) {
				start := rapid.Uint64Range(0, 20).Draw(t, "start")
				r := &Range{Start: start, End: start + rapid.Uint64Range(1, 8).Draw(t, "length"),
					IsRead: rapid.Bool().Draw(t, "read")}
				r.Granted = func() { granted = append(granted, r) }
				want := !m.mustWait(r, m.waiting)
				if got := l.Lock(r); got != want {
					t.Fatalf("Lock returned %v", got)
				}
				switch {
				case !want:
					m.waiting = append(m.waiting, r)
				case !r.IsRead:
					m.held = append(m.held, r)
				}
			},
			"unlock": func(*rapid.T) {
				var r *Range
				m.held, r = remove(m.held)
				l.Unlock(r)
				check()
			},
			"orphan": func(*rapid.T) {
				if _, r := remove(m.held); !r.isOrphan {
					l.Orphan(r)
				}
			},
			"advance": func(t *rapid.T) {
				_, r := remove(m.held)
				if r.Start+1 == r.End {
					t.Skip("it is too short")
				}
				l.Advance(r, rapid.Uint64Range(r.Start, r.End-1).Draw(t, "start"))
				check()
			},
			"withdraw": func(*rapid.T) {
				var r *Range
				m.waiting, r = remove(m.waiting)
				if !l.Withdraw(r) {
					t.Fatal("a hold that waits cannot be withdrawn")
				}
				check()
			},
			"": func(t *rapid.T) {
				orphans := int64(0)
				for _, r := range m.held {
					if r.isOrphan {
						orphans++
					}
					if l.Withdraw(r) {
						t.Fatal("a hold that is held was withdrawn")
					}
				}
				if got := fmt.Sprint(len(l.locked), l.waiting, l.orphans.Load()); got !=
					fmt.Sprint(len(m.held), m.waiting, orphans) {
					t.Fatalf("%s", got)
				}
			},
		})
	})
}

// TestThoseWhoWaitDoNotUndoEachOther counts in the two halves of a block.
func TestThoseWhoWaitDoNotUndoEachOther(t *testing.T) {
	const workers, rounds = 8, 200
	var l Locks
	block := [2]int{}
	var running sync.WaitGroup
	for i := range workers {
		running.Go(func() {
			for range rounds {
				r := l.Wait(0, 512, nil)
				former := block
				former[i%2]++
				block = former
				l.Unlock(r)
			}
		})
	}
	running.Wait()
	if want := workers / 2 * rounds; block != [2]int{want, want} {
		t.Errorf("counted %v, want %d each", block, want)
	}
}

func TestWhoeverHasGoneWaitsNoMore(t *testing.T) {
	var l Locks
	held, gone := l.Wait(0, 512, nil), make(chan struct{})
	waited := make(chan bool, 2)
	go func() { waited <- l.Wait(0, 512, gone) == nil }()
	go func() {
		l.Orphan(held)
		waited <- !l.WaitToRead(0, 512, gone)
	}()
	close(gone)
	for range 2 {
		if !<-waited {
			t.Error("a range that is held was granted")
		}
	}
	l.Unlock(held)
	if next := l.Wait(0, 512, nil); next == nil || len(l.waiting) > 0 {
		t.Errorf("the range is not free: %d wait for it", len(l.waiting))
	}
}
