package volume

import "sync/atomic"

// stack is a lock-free list that many threads push to and one takes from as a
// whole. Taking everything at once is what makes it immune to the reuse of
// requests (ABA): no thread ever follows a link of a list that it does not
// own.
type stack struct{ newest atomic.Pointer[Request] }

func (s *stack) push(r *Request) {
	for {
		newest := s.newest.Load()
		r.next = newest
		if s.newest.CompareAndSwap(newest, r) {
			return
		}
	}
}

func (s *stack) empty() bool { return s.newest.Load() == nil }

// fifo is a list that one thread owns, first in, first out.
type fifo struct{ first, last *Request }

func (f *fifo) empty() bool { return f.first == nil }

func (f *fifo) push(r *Request) {
	r.next = nil
	if f.last == nil {
		f.first = r
	} else {
		f.last.next = r
	}
	f.last = r
}

// pop returns nil if the list is empty.
func (f *fifo) pop() *Request {
	r := f.first
	if r == nil {
		return nil
	}
	f.first = r.next
	if f.first == nil {
		f.last = nil
	}
	r.next = nil
	return r
}

// takeAll moves what was pushed to s behind what is in f, oldest first.
func (f *fifo) takeAll(s *stack) {
	if s.empty() {
		return
	}
	newest := s.newest.Swap(nil)
	var oldest *Request
	for r := newest; r != nil; {
		next := r.next
		r.next = oldest
		oldest, r = r, next
	}
	if f.last == nil {
		f.first = oldest
	} else {
		f.last.next = oldest
	}
	f.last = newest
}
