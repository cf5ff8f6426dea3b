// SPDX-License-Identifier: Apache-2.0

// Package inorder runs functions one after the other, so that what takes long keeps its order and
// holds up nobody else.
package inorder

import (
	"slices"
	"sync"
	"time"
)

// Queue runs functions in the order in which they come, on a goroutine that exists while there are
// any. Any goroutine may call its methods. The zero value is empty.
type Queue struct {
	mu      sync.Mutex
	waiting []*Entry
	running bool
}

// Entry is a function in a queue.
type Entry struct{ run func() }

// Do runs f after everything that came before.
func (q *Queue) Do(f func()) *Entry {
	added := &Entry{f}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, added)
	if !q.running {
		q.running = true
		go q.run()
	}
	return added
}

// DoSoon runs f after everything that came before, but does not wait for that beyond Patience: then
// it runs f beside it, and returns nil.
func (q *Queue) DoSoon(f func()) *Entry {
	if q.Settle() {
		return q.Do(f)
	}
	go f()
	return nil
}

// Withdraw takes a function back. It returns false if the function has begun, and for nil.
func (q *Queue) Withdraw(e *Entry) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.waiting, e)
	if i >= 0 {
		q.waiting = slices.Delete(q.waiting, i, i+1)
	}
	return i >= 0
}

// isIdle reports whether no function runs or waits.
func (q *Queue) isIdle() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return !q.running
}

// Wait waits until everything that came before has run.
func (q *Queue) Wait() {
	done := make(chan struct{})
	q.Do(func() { close(done) })
	<-done
}

// Patience is how long what cannot wait for the peer waits for what came before it. Tests of the
// order change it.
var Patience = 100 * time.Millisecond

// Settle is Wait for at most Patience, and returns whether everything has run.
func (q *Queue) Settle() bool {
	if q.isIdle() {
		return true
	}
	done := make(chan struct{})
	marker := q.Do(func() { close(done) })
	timer := time.NewTimer(Patience)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return !q.Withdraw(marker)
	}
}

func (q *Queue) run() {
	for {
		q.mu.Lock()
		if len(q.waiting) == 0 {
			q.running = false
			q.mu.Unlock()
			return
		}
		next := q.waiting[0]
		q.waiting = slices.Delete(q.waiting, 0, 1)
		q.mu.Unlock()
		next.run()
	}
}
