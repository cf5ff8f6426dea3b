// SPDX-License-Identifier: Apache-2.0

// Package rangelock orders what happens to ranges of a volume.
//
// Changes of overlapping ranges never run at the same time. So a change of a part of a block, which
// reads the block, changes it, and writes it back, undoes no other change, and a change that nobody
// waits for any more does not overtake one that began later. Reads run beside changes, except that
// they wait for an orphan: a change that was sent and whose owner has gone. Nobody can say whether
// an orphan has happened. So nobody may see that it has not, and then find that it has.
package rangelock

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Locks holds the locks on ranges of a volume. The zero value has none. Any thread may call its
// methods.
type Locks struct {
	orphans atomic.Int64 // ranges that are orphans

	mu      sync.Mutex // guards the fields below
	locked  []span
	waiting []*Range // oldest first
}

// span is a range that is locked. It is a copy, so that a search reads one piece of memory.
type span struct {
	start, end uint64
	of         *Range
}

// Range is a range of the volume that is locked, or waits to be. Only Locks changes it meanwhile.
type Range struct {
	Start, End uint64 // in bytes; End is not included
	// IsRead makes the range wait for orphans only. Nobody waits for it, and it needs no Unlock.
	IsRead bool
	// Granted is called, by any thread, if Lock has returned false and the range is locked now.
	Granted func()

	index    int // in locked
	isOrphan bool
}

func overlap(a, b *Range) bool { return a.Start < b.End && b.Start < a.End }

// Lock locks a range. It returns false if r has to wait for others.
func (l *Locks) Lock(r *Range) bool {
	if r.IsRead && l.orphans.Load() == 0 {
		return true // the usual case
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mustWait(r, l.waiting) {
		l.waiting = append(l.waiting, r)
		return false
	}
	l.grant(r)
	return true
}

// Wait locks a range for a change, and returns when it is locked. It returns nil if gone is closed
// before.
func (l *Locks) Wait(start, end uint64, gone <-chan struct{}) *Range {
	r := &Range{Start: start, End: end}
	if !l.wait(r, gone) {
		return nil
	}
	return r
}

// WaitToRead returns when no orphan overlaps a range. It returns false if gone is closed before.
func (l *Locks) WaitToRead(start, end uint64, gone <-chan struct{}) bool {
	return l.orphans.Load() == 0 || l.wait(&Range{Start: start, End: end, IsRead: true}, gone)
}

func (l *Locks) wait(r *Range, gone <-chan struct{}) bool {
	granted := make(chan struct{})
	r.Granted = func() { close(granted) }
	if l.Lock(r) {
		return true
	}
	select {
	case <-granted:
		return true
	case <-gone:
	}
	if !l.Withdraw(r) {
		<-granted
		if !r.IsRead {
			l.Unlock(r)
		}
	}
	return false
}

// mustWait reports whether r conflicts with a range that is locked, or with one that waits longer.
func (l *Locks) mustWait(r *Range, before []*Range) bool {
	for i := range l.locked {
		s := &l.locked[i]
		if s.start < r.End && r.Start < s.end && (!r.IsRead || s.of.isOrphan) {
			return true
		}
	}
	return !r.IsRead && slices.ContainsFunc(before, func(other *Range) bool {
		return !other.IsRead && overlap(r, other)
	})
}

func (l *Locks) grant(r *Range) {
	if !r.IsRead {
		r.index = len(l.locked)
		l.locked = append(l.locked, span{r.Start, r.End, r})
	}
}

// Orphan makes a range that is locked an orphan, until Unlock.
func (l *Locks) Orphan(r *Range) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.isOrphan = true
	l.orphans.Add(1)
}

// Advance unlocks the part before start of a range that is locked.
func (l *Locks) Advance(r *Range, start uint64) {
	l.mu.Lock()
	unlocked := &Range{Start: r.Start, End: start}
	r.Start, l.locked[r.index].start = start, start
	l.grantAndUnlock(unlocked)
}

// Withdraw makes a range that waits wait no more. It returns false if r does not wait: then its
// Granted has been called, or will be.
func (l *Locks) Withdraw(r *Range) bool {
	l.mu.Lock()
	i := slices.Index(l.waiting, r)
	if i < 0 {
		l.mu.Unlock()
		return false
	}
	l.waiting = slices.Delete(l.waiting, i, i+1)
	l.grantAndUnlock(r)
	return true
}

// Unlock unlocks a range, and grants what has waited for it.
func (l *Locks) Unlock(r *Range) {
	l.mu.Lock()
	last := len(l.locked) - 1
	l.locked[r.index] = l.locked[last]
	l.locked[r.index].of.index = r.index
	l.locked[last] = span{}
	l.locked = l.locked[:last]
	if r.isOrphan {
		r.isOrphan = false
		l.orphans.Add(-1)
	}
	l.grantAndUnlock(r)
}

// grantAndUnlock grants what has waited for r, which has gone, and unlocks l.mu.
func (l *Locks) grantAndUnlock(r *Range) {
	var granted []func()
	for i := 0; i < len(l.waiting); {
		w := l.waiting[i]
		if !overlap(w, r) || l.mustWait(w, l.waiting[:i]) {
			i++
			continue
		}
		l.waiting = slices.Delete(l.waiting, i, i+1)
		l.grant(w)
		granted = append(granted, w.Granted)
	}
	l.mu.Unlock()
	for _, f := range granted {
		f()
	}
}
