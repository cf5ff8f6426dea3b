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
	orphans atomic.Int64 // holds that are orphans

	mu      sync.Mutex // guards the fields below
	held    []span
	waiting []*Hold // oldest first
}

// span is a range that is held. It is a copy, so that a search reads one piece of memory.
type span struct {
	start, end uint64
	hold       *Hold
}

// Hold is a range of the volume that is locked, or waits to be. Only Locks changes it meanwhile.
type Hold struct {
	Start, End uint64 // in bytes; End is not included
	// IsRead makes the hold wait for orphans only. Nobody waits for it, and it needs no Unlock.
	IsRead bool
	// Granted is called, by any thread, if Lock has returned false and the range is locked now.
	Granted func()

	index    int // in held
	isOrphan bool
}

func overlap(a, b *Hold) bool { return a.Start < b.End && b.Start < a.End }

// Lock locks a range. It returns false if h has to wait for others.
func (l *Locks) Lock(h *Hold) bool {
	if h.IsRead && l.orphans.Load() == 0 {
		return true // the usual case
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mustWait(h, l.waiting) {
		l.waiting = append(l.waiting, h)
		return false
	}
	l.hold(h)
	return true
}

// Wait locks a range for a change, and returns when it is locked. It returns nil if gone is closed
// before.
func (l *Locks) Wait(start, end uint64, gone <-chan struct{}) *Hold {
	h := &Hold{Start: start, End: end}
	if !l.wait(h, gone) {
		return nil
	}
	return h
}

// WaitToRead returns when no orphan overlaps a range. It returns false if gone is closed before.
func (l *Locks) WaitToRead(start, end uint64, gone <-chan struct{}) bool {
	return l.orphans.Load() == 0 || l.wait(&Hold{Start: start, End: end, IsRead: true}, gone)
}

func (l *Locks) wait(h *Hold, gone <-chan struct{}) bool {
	granted := make(chan struct{})
	h.Granted = func() { close(granted) }
	if l.Lock(h) {
		return true
	}
	select {
	case <-granted:
		return true
	case <-gone:
	}
	if !l.Withdraw(h) {
		<-granted
		if !h.IsRead {
			l.Unlock(h)
		}
	}
	return false
}

// mustWait reports whether h conflicts with a range that is held, or with one that waits longer.
func (l *Locks) mustWait(h *Hold, before []*Hold) bool {
	for i := range l.held {
		s := &l.held[i]
		if s.start < h.End && h.Start < s.end && (!h.IsRead || s.hold.isOrphan) {
			return true
		}
	}
	return !h.IsRead && slices.ContainsFunc(before, func(other *Hold) bool {
		return !other.IsRead && overlap(h, other)
	})
}

func (l *Locks) hold(h *Hold) {
	if !h.IsRead {
		h.index = len(l.held)
		l.held = append(l.held, span{h.Start, h.End, h})
	}
}

// Abandon makes a hold that is held an orphan, until Unlock.
func (l *Locks) Abandon(h *Hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h.isOrphan = true
	l.orphans.Add(1)
}

// Advance unlocks the part before start of a range that is held.
func (l *Locks) Advance(h *Hold, start uint64) {
	l.mu.Lock()
	released := &Hold{Start: h.Start, End: start}
	h.Start, l.held[h.index].start = start, start
	l.grantAndUnlock(released)
}

// Withdraw makes a hold that waits wait no more. It returns false if h does not wait: then its
// Granted has been called, or will be.
func (l *Locks) Withdraw(h *Hold) bool {
	l.mu.Lock()
	i := slices.Index(l.waiting, h)
	if i < 0 {
		l.mu.Unlock()
		return false
	}
	l.waiting = slices.Delete(l.waiting, i, i+1)
	l.grantAndUnlock(h)
	return true
}

// Unlock unlocks a range that is held, and grants what has waited for it.
func (l *Locks) Unlock(h *Hold) {
	l.mu.Lock()
	last := len(l.held) - 1
	l.held[h.index] = l.held[last]
	l.held[h.index].hold.index = h.index
	l.held[last] = span{}
	l.held = l.held[:last]
	if h.isOrphan {
		h.isOrphan = false
		l.orphans.Add(-1)
	}
	l.grantAndUnlock(h)
}

// grantAndUnlock grants what has waited for h, which has gone, and unlocks l.mu.
func (l *Locks) grantAndUnlock(h *Hold) {
	var granted []func()
	for i := 0; i < len(l.waiting); {
		w := l.waiting[i]
		if !overlap(w, h) || l.mustWait(w, l.waiting[:i]) {
			i++
			continue
		}
		l.waiting = slices.Delete(l.waiting, i, i+1)
		l.hold(w)
		granted = append(granted, w.Granted)
	}
	l.mu.Unlock()
	for _, f := range granted {
		f()
	}
}
