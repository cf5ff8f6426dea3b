// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// queue is the Queue of every kind of volume. Submit itself carries out what cannot block; a pool
// of the volume carries out everything else.
type queue struct {
	info     Info
	volume   *storeVolume
	store    store
	health   *health
	depth    int
	running  int         // submitted and not yet polled
	ready    requestList // completed, in the order in which Poll returns them
	doorbell doorbell
	closed   bool
	// collection is nil unless a Collector serves the volume.
	collection Collection

	// The fields below are shared with pools.
	completed requestStack
	armed     atomic.Bool
	// completing counts the goroutines that may still ring the doorbell, which must outlive them.
	completing atomic.Int32
}

func newQueue(v *storeVolume, depth int) (*queue, error) {
	if depth < 1 {
		return nil, status.Errorf(status.InvalidValue, "depth %d is below 1", depth)
	}
	bell, err := newDoorbell(unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	v.queues.Add(1)
	return &queue{
		info: v.Info(), volume: v, store: v.store, health: v.health, depth: depth, doorbell: bell,
	}, nil
}

// Submit starts a request.
func (q *queue) Submit(r *Request) error {
	if q.running >= q.depth {
		if q.closed {
			return fmt.Errorf("queue of volume %q: %w", q.info.Name, status.ErrClosed)
		}
		return status.Again
	}
	if err := q.info.Check(r); err != nil {
		// The queue looks for a new size only when it matters.
		size := q.volume.size.Load()
		if size <= q.info.Size {
			return err
		}
		q.info.Size = size
		if err := q.info.Check(r); err != nil {
			return err
		}
	}
	q.running++
	r.Err, r.queue = nil, q
	if p := q.store.start(r); p != nil {
		p.submit(r)
		return nil
	}
	if r.Err != nil {
		q.health.count(r)
	}
	q.ready.push(r)
	return nil
}

// Poll collects completed requests.
func (q *queue) Poll(completed []*Request) int {
	if q.collection != nil {
		q.collection.Collect()
	}
	q.ready.appendAll(&q.completed)
	for n := range completed {
		r := q.ready.pop()
		if r == nil {
			q.running -= n
			return n
		}
		completed[n] = r
	}
	q.running -= len(completed)
	return len(completed)
}

// complete hands a request back to the queue's thread. Pools call it.
func (q *queue) complete(r *Request) {
	if r.Err != nil {
		q.health.count(r)
	}
	q.completing.Add(1)
	q.completed.push(r)
	// Only the goroutine that clears the flag rings, because one ring per sleep is enough.
	if q.armed.Load() && q.armed.CompareAndSwap(true, false) {
		q.doorbell.ring()
	}
	q.completing.Add(-1)
}

// Descriptor returns the doorbell.
func (q *queue) Descriptor() int { return q.doorbell.fd }

// Arm prepares for sleep unless a request has completed.
func (q *queue) Arm() bool {
	q.armed.Store(true)
	if q.ready.isEmpty() && q.completed.isEmpty() && (q.collection == nil || q.collection.Arm()) {
		return true
	}
	q.armed.Store(false)
	return false
}

// Disarm cancels Arm.
func (q *queue) Disarm() {
	q.armed.Store(false)
	if q.collection != nil {
		q.collection.Disarm()
	}
}

// Clear clears the doorbell.
func (q *queue) Clear() { q.doorbell.wait() }

// Close releases the queue.
func (q *queue) Close() error {
	if q.closed {
		return nil
	}
	if q.running > 0 {
		return status.Errorf(status.InUse,
			"close queue of volume %q: %d requests are in flight", q.info.Name, q.running)
	}
	q.closed, q.depth = true, 0 // so that Submit need not look for both
	if q.collection != nil {
		q.collection.Close()
	}
	for q.completing.Load() > 0 {
		runtime.Gosched() // ringing is one system call, so this is short
	}
	q.volume.queues.Add(-1)
	if err := q.doorbell.close(); err != nil {
		return fmt.Errorf("close queue of volume %q: %w", q.info.Name, err)
	}
	return nil
}

// pool is a fixed set of goroutines that carry out requests that may block.
//
// A queue's thread only pushes to a lock-free stack. The mutex is taken only among the pool's
// goroutines, which may block anyway. Each of them sleeps in read(2) on its own eventfd rather than
// on a channel: ringing an eventfd is one system call that does not involve the Go scheduler. The
// scheduler takes ten times as long to start a goroutine on behalf of a thread that polls and never
// yields its processor. submit wakes the first idle goroutine, so that a light load keeps few
// threads warm.
//
// Before it sleeps, the only goroutine of a pool polls for more requests for a while, because being
// woken takes longer than a small write. It yields the core between polls. In a larger pool,
// polling would take the core from the goroutines that have work.
type pool struct {
	batchSize int
	arrived   requestStack
	idle      atomic.Uint64 // one bit for each goroutine that sleeps or is about to
	spinning  atomic.Bool   // the only goroutine polls, so it need not be woken
	doorbells []doorbell    // one for each goroutine
	stopping  atomic.Bool
	members   sync.WaitGroup

	mu      sync.Mutex // guards waiting
	waiting requestList
}

// maxPoolSize is the number of bits in pool.idle.
const maxPoolSize = 64

// startPool starts size goroutines, at most maxPoolSize. Each calls handle with a batch of up to
// batchSize requests. handle takes every request out of the batch and completes it or passes it on.
func startPool(size, batchSize int, handle func(batch *requestList)) (*pool, error) {
	p := &pool{batchSize: batchSize}
	for range min(size, maxPoolSize) {
		bell, err := newDoorbell(0)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("start %d IO goroutines: %w", size, err),
				p.closeDoorbells())
		}
		p.doorbells = append(p.doorbells, bell)
	}
	for member := range p.doorbells {
		p.members.Go(func() {
			var batch requestList
			for p.awaitBatch(member, &batch) {
				handle(&batch)
			}
		})
	}
	return p, nil
}

// submit passes a request to the pool. It neither blocks nor allocates.
func (p *pool) submit(r *Request) {
	p.arrived.push(r)
	if p.spinning.Load() {
		return
	}
	for idle := p.idle.Load(); idle != 0; idle = p.idle.Load() {
		member := bits.TrailingZeros64(idle)
		if p.idle.CompareAndSwap(idle, idle&^(1<<member)) {
			p.doorbells[member].ring()
			return
		}
	}
}

// awaitBatch waits for requests. It returns false when the pool stops.
func (p *pool) awaitBatch(member int, batch *requestList) bool {
	mine := uint64(1) << member
	for !p.dequeue(batch) {
		if p.spin(batch) {
			return true
		}
		p.idle.Or(mine)
		// A submitter that came before the idle bit was set had nobody to wake, so look again.
		found := p.dequeue(batch)
		if !found && p.stopping.Load() {
			return false
		}
		if !found || p.idle.And(^mine)&mine == 0 {
			// In the second case a submitter has cleared the bit and is going to ring.
			p.doorbells[member].wait()
		}
		if found {
			return true
		}
	}
	return true
}

// spinTurns is how often a goroutine polls for requests before it sleeps, which takes about 50 µs
// on an idle machine.
const spinTurns = 128

// spin polls for requests without sleeping. Submitters do not ring meanwhile, so it polls once more
// after it has stopped spinning.
func (p *pool) spin(batch *requestList) bool {
	if len(p.doorbells) > 1 {
		return false
	}
	p.spinning.Store(true)
	for turn := 0; turn < spinTurns && p.arrived.isEmpty() && !p.stopping.Load(); turn++ {
		progress.Yield()
	}
	p.spinning.Store(false)
	return p.dequeue(batch)
}

// dequeue moves the oldest requests into batch and reports whether there were any.
func (p *pool) dequeue(batch *requestList) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting.appendAll(&p.arrived)
	for range p.batchSize {
		r := p.waiting.pop()
		if r == nil {
			break
		}
		batch.push(r)
	}
	return !batch.isEmpty()
}

// stop waits until every submitted request has completed and ends the goroutines. It may be called
// once.
func (p *pool) stop() error {
	p.stopping.Store(true)
	for _, bell := range p.doorbells {
		bell.ring()
	}
	p.members.Wait()
	return p.closeDoorbells()
}

func (p *pool) closeDoorbells() error {
	var errs []error
	for _, bell := range p.doorbells {
		errs = append(errs, bell.close())
	}
	return errors.Join(errs...)
}

// doorbell is an eventfd that never leaves this process. A peer could prevent a shared one from
// ever being read or written.
type doorbell struct {
	fd int
	// count receives what wait reads. A local variable would be allocated on each wait in builds
	// with the race detector.
	count *[8]byte
}

// oneRing is written to an eventfd to add 1 to its count.
var oneRing = binary.NativeEndian.AppendUint64(nil, 1)

// newDoorbell creates a doorbell; flags are those of eventfd(2).
func newDoorbell(flags int) (doorbell, error) {
	fd, err := unix.Eventfd(0, flags|unix.EFD_CLOEXEC)
	if err != nil {
		return doorbell{fd: -1}, fmt.Errorf("create eventfd: %w", err)
	}
	return doorbell{fd: fd, count: new([8]byte)}, nil
}

// ring does not block, because it would only do so at an eventfd count close to 2^64.
func (d doorbell) ring() {
	for {
		if _, err := unix.Write(d.fd, oneRing); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// wait returns once the doorbell has been rung, and clears all rings so far. On a non-blocking
// doorbell it returns at once. Only one thread may wait.
func (d doorbell) wait() {
	for {
		if _, err := unix.Read(d.fd, d.count[:]); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

func (d doorbell) close() error { return unix.Close(d.fd) }

// requestStack is a lock-free list. Many threads push to it; one takes everything at once. Reusing
// requests (ABA) does no harm: no thread ever follows a link of a list that it does not own.
type requestStack struct{ newest atomic.Pointer[Request] }

func (s *requestStack) push(r *Request) {
	for {
		newest := s.newest.Load()
		r.next = newest
		if s.newest.CompareAndSwap(newest, r) {
			return
		}
	}
}

func (s *requestStack) isEmpty() bool { return s.newest.Load() == nil }

// requestList is a first-in, first-out list that one thread owns.
type requestList struct{ first, last *Request }

func (l *requestList) isEmpty() bool { return l.first == nil }

func (l *requestList) push(r *Request) {
	r.next = nil
	if l.last == nil {
		l.first = r
	} else {
		l.last.next = r
	}
	l.last = r
}

// pop removes and returns the oldest request, or returns nil if the list is empty.
func (l *requestList) pop() *Request {
	r := l.first
	if r == nil {
		return nil
	}
	l.first = r.next
	if l.first == nil {
		l.last = nil
	}
	r.next = nil
	return r
}

// appendAll moves everything in s to the end of l, oldest first.
func (l *requestList) appendAll(s *requestStack) {
	if s.isEmpty() {
		return
	}
	newest := s.newest.Swap(nil)
	var oldest *Request
	for r := newest; r != nil; {
		next := r.next
		r.next = oldest
		oldest, r = r, next
	}
	if l.last == nil {
		l.first = oldest
	} else {
		l.last.next = oldest
	}
	l.last = newest
}
