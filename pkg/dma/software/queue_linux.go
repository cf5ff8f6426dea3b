package software

import (
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/dma"
)

// cacheLine keeps the two sides of a queue from slowing each other down.
const cacheLine = 64

// queue carries copies from one thread to another. As a progress.Waiter it
// belongs to the thread that takes.
type queue struct {
	slots []*dma.Copy

	_        [cacheLine]byte
	taken    atomic.Uint64 // written by the thread that takes
	sleeping atomic.Bool

	_   [cacheLine]byte
	put atomic.Uint64 // written by the thread that puts

	_          [cacheLine]byte
	descriptor int     // eventfd
	ring       [8]byte // what rings it, and what it has counted: system calls
	count      [8]byte // would have buffers on the stack allocated
}

// newQueue makes a queue that never holds more than capacity copies.
func newQueue(capacity int) (*queue, error) {
	descriptor, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("create eventfd: %w", err)
	}
	return &queue{slots: make([]*dma.Copy, capacity), descriptor: descriptor, ring: [8]byte{1}}, nil
}

func (q *queue) close() error { return unix.Close(q.descriptor) }

// add publishes a copy, and then looks whether anybody sleeps: the sleeper does
// it the other way round, so one of the two sees the other.
func (q *queue) add(c *dma.Copy) {
	position := q.put.Load()
	q.slots[position%uint64(len(q.slots))] = c
	q.put.Store(position + 1)
	if q.sleeping.Load() {
		// A full counter means that it has been rung already.
		_, _ = unix.Write(q.descriptor, q.ring[:])
	}
}

// take returns the next copy, nil if there is none.
func (q *queue) take() *dma.Copy {
	position := q.taken.Load()
	if position == q.put.Load() {
		return nil
	}
	c := q.slots[position%uint64(len(q.slots))]
	q.taken.Store(position + 1)
	return c
}

func (q *queue) Descriptor() int { return q.descriptor }

func (q *queue) Arm() bool {
	q.sleeping.Store(true)
	if q.taken.Load() != q.put.Load() {
		q.sleeping.Store(false)
		return false
	}
	return true
}

func (q *queue) Disarm() { q.sleeping.Store(false) }

func (q *queue) Drain() {
	_, _ = unix.Read(q.descriptor, q.count[:])
}
