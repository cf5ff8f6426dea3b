// Package rangelock serializes changes to parts of blocks. To change a part of a block, one reads
// the block, changes it, and writes it back, which must not undo another change in between. Such a
// change holds its range exclusively; a change of whole blocks shares its range with others like
// it.
package rangelock

import "sync"

// Locks holds the locks on ranges of a volume. The zero value has none. Any thread may call its
// methods.
type Locks struct {
	mu      sync.Mutex
	held    Hold // head of a ring
	waiting []*Hold
	// exclusive is the number of exclusive holds that are held.
	exclusive int
}

// Hold is a range of the volume that is locked, or waits to be. It must not be changed meanwhile.
type Hold struct {
	Start, End uint64 // in bytes; End is not included
	Exclusive  bool
	// Granted is called, by any thread, if Lock has returned false and the range is locked now.
	Granted func()

	previous, next *Hold // in the ring
}

func (h *Hold) conflicts(other *Hold) bool {
	return (h.Exclusive || other.Exclusive) && h.Start < other.End && other.Start < h.End
}

// Lock locks a range. It returns false if h has to wait for others.
func (l *Locks) Lock(h *Hold) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mustWait(h, l.waiting) {
		l.waiting = append(l.waiting, h)
		return false
	}
	l.hold(h)
	return true
}

// Wait locks a range, and returns when it is locked.
func (l *Locks) Wait(start, end uint64, exclusive bool) *Hold {
	h := &Hold{Start: start, End: end, Exclusive: exclusive}
	l.mu.Lock()
	if !l.mustWait(h, l.waiting) {
		l.hold(h)
		l.mu.Unlock()
		return h
	}
	granted := make(chan struct{})
	h.Granted = func() { close(granted) }
	l.waiting = append(l.waiting, h)
	l.mu.Unlock()
	<-granted
	return h
}

// mustWait reports whether h conflicts with a range that is held, or with one that waits longer.
func (l *Locks) mustWait(h *Hold, before []*Hold) bool {
	for _, other := range before {
		if h.conflicts(other) {
			return true
		}
	}
	if l.exclusive == 0 && !h.Exclusive {
		return false // the usual case
	}
	for other := l.held.next; other != nil && other != &l.held; other = other.next {
		if h.conflicts(other) {
			return true
		}
	}
	return false
}

func (l *Locks) hold(h *Hold) {
	if l.held.next == nil {
		l.held.next, l.held.previous = &l.held, &l.held
	}
	h.next, h.previous = &l.held, l.held.previous
	h.previous.next, l.held.previous = h, h
	if h.Exclusive {
		l.exclusive++
	}
}

// Unlock unlocks a range that is held, and grants what has waited for it.
func (l *Locks) Unlock(h *Hold) {
	l.mu.Lock()
	h.previous.next, h.next.previous = h.next, h.previous
	h.previous, h.next = nil, nil
	if h.Exclusive {
		l.exclusive--
	}
	var granted []func()
	for i := 0; i < len(l.waiting); {
		w := l.waiting[i]
		if l.mustWait(w, l.waiting[:i]) {
			i++
			continue
		}
		l.waiting = append(l.waiting[:i], l.waiting[i+1:]...)
		l.hold(w)
		granted = append(granted, w.Granted)
	}
	l.mu.Unlock()
	for _, f := range granted {
		f()
	}
}
