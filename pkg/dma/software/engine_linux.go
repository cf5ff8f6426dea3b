// SPDX-License-Identifier: Apache-2.0

package software

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/dma/internal/users"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// engine implements dma.Engine. A copy passes through the submitted queue to a thread, which
// executes it, and returns through the done queue, which is also the engine's progress.Waiter.
type engine struct {
	*queue // done

	device   *device
	thread   *copyThread
	capacity int
	inFlight int
	closed   bool
}

func newEngine(d *device, capacity int) (*engine, error) {
	done, err := newQueue(capacity)
	if err != nil {
		return nil, fmt.Errorf("create DMA engine: %w", err)
	}
	thread, err := startCopyThread(done, capacity, d.policy)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create DMA engine: %w", err), done.close())
	}
	return &engine{queue: done, device: d, thread: thread, capacity: capacity}, nil
}

func (e *engine) Submit(c *dma.Copy) error {
	if e.closed {
		return status.Errorf(status.BadState, "submit copy: the DMA engine is closed")
	}
	if e.inFlight == e.capacity {
		return status.Errorf(status.Full,
			"submit copy: the DMA engine has the maximum of %d copies in flight", e.inFlight)
	}
	e.inFlight++
	e.thread.submitted.push(c)
	return nil
}

func (e *engine) Poll(done []*dma.Copy) int {
	n := 0
	for n < len(done) {
		c := e.pop()
		if c == nil {
			break
		}
		done[n] = c
		n++
	}
	e.inFlight -= n
	return n
}

func (e *engine) Close() error {
	if e.closed {
		return nil
	}
	if e.inFlight > 0 {
		return status.Errorf(status.InUse, "close DMA engine: %d copies are in flight", e.inFlight)
	}
	e.closed = true
	err := errors.Join(e.thread.stop(), e.close())
	e.device.users.Remove(users.Engine)
	return err
}

// pieceSize is the number of bytes that are copied without a break. Nothing can interrupt the
// copying of a piece, not even the start of a garbage collection, so a piece must be short. It must
// also be long enough to make the cost of the breaks negligible.
const pieceSize = 256 << 10

// copyThread is an OS thread that executes the copies in the submitted queue and moves them to the
// done queue.
type copyThread struct {
	submitted *queue
	done      *queue
	progress  *progress.Engine
	stopping  atomic.Bool
	ended     chan struct{}
}

func startCopyThread(done *queue, capacity int, policy progress.Policy) (*copyThread, error) {
	submitted, err := newQueue(capacity)
	if err != nil {
		return nil, err
	}
	engine, err := progress.NewEngine(policy)
	if err != nil {
		return nil, errors.Join(err, submitted.close())
	}
	t := &copyThread{submitted: submitted, done: done, progress: engine,
		ended: make(chan struct{})}
	if err := errors.Join(engine.Add(t), engine.AddWaiter(submitted)); err != nil {
		return nil, errors.Join(err, engine.Close(), submitted.close())
	}
	go t.run()
	return t, nil
}

func (t *copyThread) run() {
	defer close(t.ended)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for !t.stopping.Load() {
		t.progress.Idle(t.progress.Progress())
	}
}

// stop ends the thread. Nothing may be in flight.
func (t *copyThread) stop() error {
	t.stopping.Store(true)
	t.progress.Wake()
	<-t.ended
	return errors.Join(t.progress.Close(), t.submitted.close())
}

// Poll executes one copy.
func (t *copyThread) Poll() int {
	c := t.submitted.pop()
	if c == nil {
		return 0
	}
	c.Err = copyAll(c)
	t.done.push(c)
	return 1
}

// copyAll copies the sources, one after the other, to the destination.
func copyAll(c *dma.Copy) error {
	to, offset := c.Destination.Memory.(*registration).region, c.Destination.Offset
	for _, source := range c.Sources {
		from := source.Memory.(*registration).region
		for done := uint64(0); done < source.Length; {
			n := min(pieceSize, source.Length-done)
			if err := memory.Copy(to, offset+done, from, source.Offset+done, n); err != nil {
				return err
			}
			done += n
		}
		offset += source.Length
	}
	return nil
}

// cacheLine is the distance in bytes between fields that different threads write, so that the
// threads do not slow each other down.
const cacheLine = 64

// queue passes copies from a thread that pushes to another that pops. Its progress.Waiter belongs
// to the thread that pops.
type queue struct {
	slots []*dma.Copy

	_        [cacheLine]byte
	popped   atomic.Uint64 // written by the thread that pops
	sleeping atomic.Bool

	_      [cacheLine]byte
	pushed atomic.Uint64 // written by the thread that pushes

	_          [cacheLine]byte
	descriptor int // eventfd
	// The buffers of system calls. As local variables, they would escape to the heap.
	ring  [8]byte // written to ring the doorbell
	count [8]byte // read to clear it
}

// newQueue returns a queue for up to capacity copies. The caller never pushes more.
func newQueue(capacity int) (*queue, error) {
	descriptor, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("create eventfd: %w", err)
	}
	return &queue{slots: make([]*dma.Copy, capacity), descriptor: descriptor, ring: [8]byte{1}}, nil
}

func (q *queue) close() error { return unix.Close(q.descriptor) }

// push publishes a copy and then checks whether the other side sleeps. Arm announces the sleep and
// then checks for copies, so at least one side sees the other.
func (q *queue) push(c *dma.Copy) {
	position := q.pushed.Load()
	q.slots[position%uint64(len(q.slots))] = c
	q.pushed.Store(position + 1)
	if q.sleeping.Load() {
		// The write fails only if the counter is full: the doorbell is rung already.
		_, _ = unix.Write(q.descriptor, q.ring[:])
	}
}

// pop returns the oldest copy, or nil if there is none.
func (q *queue) pop() *dma.Copy {
	position := q.popped.Load()
	if position == q.pushed.Load() {
		return nil
	}
	c := q.slots[position%uint64(len(q.slots))]
	q.popped.Store(position + 1)
	return c
}

func (q *queue) Descriptor() int { return q.descriptor }

func (q *queue) Arm() bool {
	q.sleeping.Store(true)
	if q.popped.Load() != q.pushed.Load() {
		q.sleeping.Store(false)
		return false
	}
	return true
}

func (q *queue) Disarm() { q.sleeping.Store(false) }

func (q *queue) Clear() {
	_, _ = unix.Read(q.descriptor, q.count[:])
}
