package volume

import (
	"fmt"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"

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
	ready    fifo
	doorbell doorbell
	closed   bool

	// What follows is shared with pools.
	completed stack
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
func (l *queue) Submit(r *Request) error {
	if l.running >= l.depth {
		return status.Full
	}
	if err := l.info.Check(r); err != nil {
		return err
	}
	l.running++
	r.Err, r.queue = nil, l
	if p := l.store.start(r); p != nil {
		p.submit(r)
		return nil
	}
	l.ready.push(r)
	return nil
}

// Poll implements Queue.
func (l *queue) Poll(completed []*Request) int {
	l.ready.takeAll(&l.completed)
	for n := range completed {
		r := l.ready.pop()
		if r == nil {
			l.running -= n
			return n
		}
		completed[n] = r
	}
	l.running -= len(completed)
	return len(completed)
}

// complete hands a request back. It is called by pools.
func (l *queue) complete(r *Request) {
	l.completing.Add(1)
	l.completed.push(r)
	// Whoever clears the flag rings: once per sleep is enough.
	if l.armed.Load() && l.armed.CompareAndSwap(true, false) {
		l.doorbell.ring()
	}
	l.completing.Add(-1)
}

// Descriptor implements progress.Waiter.
func (l *queue) Descriptor() int { return l.doorbell.fd }

// Arm implements progress.Waiter.
func (l *queue) Arm() bool {
	l.armed.Store(true)
	if l.ready.empty() && l.completed.empty() {
		return true
	}
	l.armed.Store(false)
	return false
}

// Disarm implements progress.Waiter.
func (l *queue) Disarm() { l.armed.Store(false) }

// Drain implements progress.Waiter.
func (l *queue) Drain() { l.doorbell.wait() }

// Close implements Queue.
func (l *queue) Close() error {
	if l.closed {
		return nil
	}
	if l.running > 0 {
		return status.Errorf(status.InUse, "close queue of volume %q: %d requests are running", l.info.Name, l.running)
	}
	l.closed = true
	for l.completing.Load() > 0 {
		runtime.Gosched() // for the one system call that ring is
	}
	l.queues.Add(-1)
	if err := l.doorbell.close(); err != nil {
		return fmt.Errorf("close queue of volume %q: %w", l.info.Name, err)
	}
	return nil
}
