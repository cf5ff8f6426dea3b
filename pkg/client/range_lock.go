package client

import "sync"

// rangeLock keeps changes of a volume from disturbing each other where one of
// them changes only a part of a block: that reads the block, changes it and
// writes it back, and must not undo what another wrote in between. Changes of
// whole blocks hold their range shared, changes of a part hold it exclusive.
//
// Nobody waits for a range while holding another.
type rangeLock struct {
	mu       sync.Mutex
	released sync.Cond
	held     []*heldRange
}

// heldRange is a locked range of the volume in bytes.
type heldRange struct {
	start, end uint64
	exclusive  bool
}

func newRangeLock() *rangeLock {
	l := &rangeLock{}
	l.released.L = &l.mu
	return l
}

// lock waits until the range can be held.
func (l *rangeLock) lock(start, end uint64, exclusive bool) *heldRange {
	r := &heldRange{start, end, exclusive}
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.conflicts(r) {
		l.released.Wait()
	}
	l.held = append(l.held, r)
	return r
}

func (l *rangeLock) conflicts(r *heldRange) bool {
	for _, h := range l.held {
		if (h.exclusive || r.exclusive) && h.start < r.end && r.start < h.end {
			return true
		}
	}
	return false
}

func (l *rangeLock) unlock(r *heldRange) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, h := range l.held {
		if h == r {
			last := len(l.held) - 1
			l.held[i] = l.held[last]
			l.held = l.held[:last]
			break
		}
	}
	l.released.Broadcast()
}
