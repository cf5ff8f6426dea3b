package gateway

import "sync"

// rangeLocks serializes changes that involve parts of blocks. To change a part of a block, the
// gateway reads the block, changes it, and writes it back, which must not undo another change in
// between. Such an operation holds its range exclusively; a change of whole blocks holds its range
// shared with others of its kind. Any thread may use the locks.
type rangeLocks struct {
	mu      sync.Mutex
	held    rangeHold // head of a ring
	waiting []*rangeHold
	// exclusive is the number of exclusive holds that are held.
	exclusive int
}

// rangeHold is a range of the volume that is locked, or waits to be.
type rangeHold struct {
	start, end  uint64 // in bytes; end is not included
	isExclusive bool
	// granted is called, by any thread, if lock has returned false and the range is locked now.
	granted func()

	previous, next *rangeHold // in the ring
}

func (h *rangeHold) conflicts(other *rangeHold) bool {
	return (h.isExclusive || other.isExclusive) && h.start < other.end && other.start < h.end
}

// lock locks a range. It returns false if h has to wait for others.
func (l *rangeLocks) lock(h *rangeHold) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mustWait(h, l.waiting) {
		l.waiting = append(l.waiting, h)
		return false
	}
	l.hold(h)
	return true
}

// mustWait reports whether h conflicts with a range that is held, or with one that waits longer.
func (l *rangeLocks) mustWait(h *rangeHold, before []*rangeHold) bool {
	for _, other := range before {
		if h.conflicts(other) {
			return true
		}
	}
	if l.exclusive == 0 && !h.isExclusive {
		return false // the usual case
	}
	for other := l.held.next; other != nil && other != &l.held; other = other.next {
		if h.conflicts(other) {
			return true
		}
	}
	return false
}

func (l *rangeLocks) hold(h *rangeHold) {
	if l.held.next == nil {
		l.held.next, l.held.previous = &l.held, &l.held
	}
	h.next, h.previous = &l.held, l.held.previous
	h.previous.next, l.held.previous = h, h
	if h.isExclusive {
		l.exclusive++
	}
}

// unlock unlocks a range that is held, and grants what has waited for it.
func (l *rangeLocks) unlock(h *rangeHold) {
	l.mu.Lock()
	h.previous.next, h.next.previous = h.next, h.previous
	h.previous, h.next = nil, nil
	if h.isExclusive {
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
		granted = append(granted, w.granted)
	}
	l.mu.Unlock()
	for _, f := range granted {
		f()
	}
}
