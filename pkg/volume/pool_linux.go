package volume

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

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
	handle    func(batch *fifo)
	batchSize int
	arrived   stack
	idle      atomic.Uint64 // a bit for each goroutine that sleeps or is about to
	looking   atomic.Bool   // the only one looks for requests and finds them without being woken
	doorbells []doorbell    // of each goroutine
	stopping  atomic.Bool
	members   sync.WaitGroup

	mu      sync.Mutex // guards waiting
	waiting fifo
}

// maxPoolSize is how many goroutines pool.idle has bits for.
const maxPoolSize = 64

// startPool starts size goroutines, at most maxPoolSize. Each calls handle
// with up to batchSize requests, which handle takes out of the batch and
// completes.
func startPool(size, batchSize int, handle func(batch *fifo)) (*pool, error) {
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
	if p.looking.Load() {
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
	var batch fifo
	for p.next(member, &batch) {
		p.handle(&batch)
	}
}

// next waits for requests. It returns false when the pool stops.
func (p *pool) next(member int, batch *fifo) bool {
	mine := uint64(1) << member
	for !p.take(batch) {
		if p.look(batch) {
			return true
		}
		p.idle.Or(mine)
		// Who submitted before that could not know whom to wake, so it is
		// necessary to look again.
		found := p.take(batch)
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

// looks is how often a goroutine looks for requests before it sleeps: some
// 50 µs on an idle machine.
const looks = 128

// look waits for requests without sleeping. Nobody is woken for what is
// submitted meanwhile, so whoever stops looking has to look once more.
func (p *pool) look(batch *fifo) bool {
	if len(p.doorbells) > 1 {
		return false
	}
	p.looking.Store(true)
	for look := 0; look < looks && p.arrived.empty() && !p.stopping.Load(); look++ {
		yield()
	}
	p.looking.Store(false)
	return p.take(batch)
}

// yield gives the core away (sched_yield(2)).
func yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// take moves the oldest requests into batch and reports whether there were
// any.
func (p *pool) take(batch *fifo) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting.takeAll(&p.arrived)
	for range p.batchSize {
		r := p.waiting.pop()
		if r == nil {
			break
		}
		batch.push(r)
	}
	return !batch.empty()
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
