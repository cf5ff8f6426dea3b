package volume

import (
	"fmt"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// lane is the Lane of every kind of volume: what cannot block is done within
// Submit, everything else by a pool of the volume.
type lane struct {
	info     Info
	store    store
	lanes    *atomic.Int32 // lanes of the volume that are open
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

func newLane(info Info, s store, lanes *atomic.Int32, depth int) (*lane, error) {
	if depth < 1 {
		return nil, status.Errorf(status.InvalidValue, "depth %d is below 1", depth)
	}
	bell, err := newDoorbell(unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	lanes.Add(1)
	return &lane{info: info, store: s, lanes: lanes, depth: depth, doorbell: bell}, nil
}

// Submit implements Lane.
func (l *lane) Submit(r *Request) error {
	if l.running >= l.depth {
		return status.Full
	}
	if err := l.info.Check(r); err != nil {
		return err
	}
	l.running++
	r.Err, r.lane = nil, l
	if p := l.store.start(r); p != nil {
		p.submit(r)
		return nil
	}
	l.ready.push(r)
	return nil
}

// Poll implements Lane.
func (l *lane) Poll(completed []*Request) int {
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
func (l *lane) complete(r *Request) {
	l.completing.Add(1)
	l.completed.push(r)
	// Whoever clears the flag rings: once per sleep is enough.
	if l.armed.Load() && l.armed.CompareAndSwap(true, false) {
		l.doorbell.ring()
	}
	l.completing.Add(-1)
}

// Descriptor implements progress.Waiter.
func (l *lane) Descriptor() int { return l.doorbell.fd }

// Arm implements progress.Waiter.
func (l *lane) Arm() bool {
	l.armed.Store(true)
	if l.ready.empty() && l.completed.empty() {
		return true
	}
	l.armed.Store(false)
	return false
}

// Disarm implements progress.Waiter.
func (l *lane) Disarm() { l.armed.Store(false) }

// Drain implements progress.Waiter.
func (l *lane) Drain() { l.doorbell.wait() }

// Close implements Lane.
func (l *lane) Close() error {
	if l.closed {
		return nil
	}
	if l.running > 0 {
		return status.Errorf(status.InUse, "close lane of volume %q: %d requests are running", l.info.Name, l.running)
	}
	l.closed = true
	for l.completing.Load() > 0 {
		runtime.Gosched() // for the one system call that ring is
	}
	l.lanes.Add(-1)
	if err := l.doorbell.close(); err != nil {
		return fmt.Errorf("close lane of volume %q: %w", l.info.Name, err)
	}
	return nil
}
