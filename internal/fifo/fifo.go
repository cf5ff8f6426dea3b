// SPDX-License-Identifier: Apache-2.0

// Package fifo is a bounded first-in, first-out queue for data paths: it
// allocates once, when it is made, and never grows.
package fifo

// Queue is a ring of values. It is not safe for concurrent use. The zero value
// has no room; use New.
type Queue[T any] struct {
	items []T
	head  int // index of the oldest value
	count int
}

// New returns an empty queue with room for capacity values.
func New[T any](capacity int) Queue[T] { return Queue[T]{items: make([]T, capacity)} }

// Len returns the number of values in the queue.
func (q *Queue[T]) Len() int { return q.count }

// Room returns how many more values fit.
func (q *Queue[T]) Room() int { return len(q.items) - q.count }

// Push appends a zero value and returns its place, which the caller fills in.
// It returns nil if the queue is full.
func (q *Queue[T]) Push() *T {
	if q.count == len(q.items) {
		return nil
	}
	tail := q.head + q.count
	if tail >= len(q.items) {
		tail -= len(q.items)
	}
	q.count++
	return &q.items[tail]
}

// Front returns the place of the oldest value. It panics if the queue is
// empty.
func (q *Queue[T]) Front() *T {
	if q.count == 0 {
		panic("fifo: the queue is empty")
	}
	return &q.items[q.head]
}

// Pop removes and returns the oldest value. It panics if the queue is empty.
func (q *Queue[T]) Pop() T {
	front := q.Front()
	item := *front
	var zero T
	*front = zero // keeps no reference alive
	if q.head++; q.head == len(q.items) {
		q.head = 0
	}
	q.count--
	return item
}
