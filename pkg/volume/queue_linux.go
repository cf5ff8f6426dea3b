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

// queue is the Queue of every kind of volume: what cannot block is done within
// Submit, everything else by a pool of the volume.
type queue struct {
	info     Info
	store    store
	queues   *atomic.Int32 // queues of the volume that are open
	depth    int
	running  int // submitted and not yet polled
	ready    requestList
	doorbell doorbell
	closed   bool

	// What follows is shared with pools.
	completed requestStack
	armed     atomic.Bool
	// completing counts goroutines that are about to ring: the doorbell must
	// outlive them.
	completing atomic.Int32
}

func newQueue(info Info, s store, queues *atomic.Int32, depth int) (*queue, error) {
	if depth < 1 {
		return nil, status.Errorf(status.InvalidValue, "depth %d is below 1", depth)
	}
	bell, err := newDoorbell(unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	queues.Add(1)
	return &queue{info: info, store: s, queues: queues, depth: depth, doorbell: bell}, nil
}

// Submit implements Queue.
func (q *queue) Submit(r *Request) error {
	if q.running >= q.depth {
		return status.Full
	}
	if err := q.info.Check(r); err != nil {
		return err
	}
	q.running++
	r.Err, r.queue = nil, q
	if p := q.store.start(r); p != nil {
		p.submit(r)
		return nil
	}
	q.ready.push(r)
	return nil
}

// Poll implements Queue.
func (q *queue) Poll(completed []*Request) int {
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

// complete hands a request back. It is called by pools.
func (q *queue) complete(r *Request) {
	q.completing.Add(1)
	q.completed.push(r)
	// Whoever clears the flag rings: once per sleep is enough.
	if q.armed.Load() && q.armed.CompareAndSwap(true, false) {
		q.doorbell.ring()
	}
	q.completing.Add(-1)
}

// Descriptor implements progress.Waiter.
func (q *queue) Descriptor() int { return q.doorbell.fd }

// Arm implements progress.Waiter.
func (q *queue) Arm() bool {
	q.armed.Store(true)
	if q.ready.isEmpty() && q.completed.isEmpty() {
		return true
	}
	q.armed.Store(false)
	return false
}

// Disarm implements progress.Waiter.
func (q *queue) Disarm() { q.armed.Store(false) }

// Drain implements progress.Waiter.
func (q *queue) Drain() { q.doorbell.wait() }

// Close implements Queue.
func (q *queue) Close() error {
	if q.closed {
		return nil
	}
	if q.running > 0 {
		return status.Errorf(status.InUse, "close queue of volume %q: %d requests are running", q.info.Name, q.running)
	}
	q.closed = true
	for q.completing.Load() > 0 {
		runtime.Gosched() // for the one system call that ring is
	}
	q.queues.Add(-1)
	if err := q.doorbell.close(); err != nil {
		return fmt.Errorf("close queue of volume %q: %w", q.info.Name, err)
	}
	return nil
}

// pool is a fixed number of goroutines that carry out requests which may
// block.
//
// A queue's thread only pushes to a lock-free stack; the mutex is among the
// pool's goroutines, which may block anyway. Each of them sleeps in read(2) on
// an eventfd of its own rather than on a channel: waking it is one system
// call without the Go scheduler, which takes ten times as long to get a
// goroutine going on behalf of a thread that polls and never gives its
// processor away. The first idle one is woken, so that few requests keep few
// threads warm.
//
// A goroutine that is the only one looks for more for a while before it
// sleeps, and gives the core away between two looks: being woken takes longer
// than a small write. Among several that would keep those from the core that
// have something to do.
type pool struct {
	handle    func(batch *requestList)
	batchSize int
	arrived   requestStack
	idle      atomic.Uint64 // a bit for each goroutine that sleeps or is about to
	spinning  atomic.Bool   // the only one looks for requests and finds them without being woken
	doorbells []doorbell    // of each goroutine
	stopping  atomic.Bool
	members   sync.WaitGroup

	mu      sync.Mutex // guards waiting
	waiting requestList
}

// maxPoolSize is how many goroutines pool.idle has bits for.
const maxPoolSize = 64

// startPool starts size goroutines, at most maxPoolSize. Each calls handle
// with up to batchSize requests, which handle takes out of the batch and
// completes.
func startPool(size, batchSize int, handle func(batch *requestList)) (*pool, error) {
	p := &pool{handle: handle, batchSize: batchSize}
	for range min(size, maxPoolSize) {
		bell, err := newDoorbell(0)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("start %d goroutines for IO: %w", size, err), p.closeDoorbells())
		}
		p.doorbells = append(p.doorbells, bell)
	}
	for member := range p.doorbells {
		p.members.Go(func() { p.run(member) })
	}
	return p, nil
}

// submit hands a request over. It neither blocks nor allocates.
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

func (p *pool) run(member int) {
	var batch requestList
	for p.awaitBatch(member, &batch) {
		p.handle(&batch)
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
		// Who submitted before that could not know whom to wake, so it is
		// necessary to look again.
		found := p.dequeue(batch)
		if !found && p.stopping.Load() {
			return false
		}
		if !found || p.idle.And(^mine)&mine == 0 {
			// The second case: somebody has taken the bit away and rings.
			p.doorbells[member].wait()
		}
		if found {
			return true
		}
	}
	return true
}

// spinTurns is how often a goroutine looks for requests before it sleeps: some
// 50 µs on an idle machine.
const spinTurns = 128

// spin waits for requests without sleeping. Nobody is woken for what is
// submitted meanwhile, so whoever stops looking has to look once more.
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

// dequeue moves the oldest requests into batch and reports whether there were
// any.
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

// stop waits until everything submitted is done and ends the goroutines. It
// may be called once.
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

// doorbell is an eventfd. Both ends belong to this process: a peer could keep
// a shared one from ever being read or written.
type doorbell struct {
	fd int
	// count takes what wait reads. It is here because a local variable would
	// be allocated for each wait in builds with the race detector.
	count *[8]byte
}

// oneRing is what is written to an eventfd to add 1 to its count.
var oneRing = binary.NativeEndian.AppendUint64(nil, 1)

// newDoorbell makes a doorbell; flags are those of eventfd(2).
func newDoorbell(flags int) (doorbell, error) {
	fd, err := unix.Eventfd(0, flags|unix.EFD_CLOEXEC)
	if err != nil {
		return doorbell{fd: -1}, fmt.Errorf("create eventfd: %w", err)
	}
	return doorbell{fd: fd, count: new([8]byte)}, nil
}

// ring does not block: the count of an eventfd would have to be close to 2^64
// for that.
func (d doorbell) ring() {
	for {
		if _, err := unix.Write(d.fd, oneRing); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// wait returns when the doorbell has been rung, and at once if it is
// non-blocking. It forgets all rings so far. Only one thread waits.
func (d doorbell) wait() {
	for {
		if _, err := unix.Read(d.fd, d.count[:]); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

func (d doorbell) close() error { return unix.Close(d.fd) }

// requestStack is a lock-free list that many threads push to and one takes from as a
// whole. Taking everything at once is what makes it immune to the reuse of
// requests (ABA): no thread ever follows a link of a list that it does not
// own.
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

// requestList is a list that one thread owns, first in, first out.
type requestList struct{ first, last *Request }

func (f *requestList) isEmpty() bool { return f.first == nil }

func (f *requestList) push(r *Request) {
	r.next = nil
	if f.last == nil {
		f.first = r
	} else {
		f.last.next = r
	}
	f.last = r
}

// pop returns nil if the list is empty.
func (f *requestList) pop() *Request {
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

// appendAll moves what was pushed to s behind what is in f, oldest first.
func (f *requestList) appendAll(s *requestStack) {
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
	if f.last == nil {
		f.first = oldest
	} else {
		f.last.next = oldest
	}
	f.last = newest
}
