// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Waiter is the progress.Waiter of a hook: it lets a thread sleep on the Waiter of what is hooked
// and on what the hook holds back. One thread uses it; Injector.Release wakes it from others.
type Waiter struct {
	injector *Injector
	inner    progress.Waiter
	canStall bool
	armed    bool // inner is
	epoll    int  // holds timer and the inner descriptor; NoDescriptor if inner's serves
	timer    int

	mu     sync.Mutex // orders ring and Close
	closed bool
}

var _ io.Closer = (*Waiter)(nil)

// NewWaiter returns the waiter of a hook that applies the rules of points to what inner waits for.
// If inner has no descriptor, the waiter has none either.
func (i *Injector) NewWaiter(inner progress.Waiter, points ...*Point) (*Waiter, error) {
	if inner == nil {
		return nil, status.Errorf(status.InvalidValue,
			"the waiter of what is hooked is nil: there is nothing to wait for")
	}
	w := &Waiter{injector: i, inner: inner,
		canStall: slices.ContainsFunc(points, (*Point).CanStall),
		epoll:    progress.NoDescriptor, timer: progress.NoDescriptor}
	if !w.canStall || i == nil || inner.Descriptor() == progress.NoDescriptor {
		return w, nil
	}
	var err error
	if w.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("create epoll set: %w", err)
	}
	w.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create timer: %w", err), unix.Close(w.epoll))
	}
	for _, fd := range []int{w.timer, inner.Descriptor()} {
		event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
		if err := unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
			return nil, errors.Join(fmt.Errorf("watch descriptor %d: %w", fd, err), w.Close())
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.waiters[w] = struct{}{}
	return w, nil
}

// Close releases the descriptors. The inner waiter stays as it is. Close does nothing the second
// time.
func (w *Waiter) Close() error {
	if w.injector == nil {
		return nil // it has no descriptors
	}
	w.injector.mu.Lock()
	delete(w.injector.waiters, w)
	w.injector.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.epoll == progress.NoDescriptor {
		return nil
	}
	w.closed = true
	return errors.Join(unix.Close(w.epoll), unix.Close(w.timer))
}

// CanStall reports whether a rule can hold anything back.
func (w *Waiter) CanStall() bool { return w.canStall }

// Descriptor returns a descriptor that is readable when the inner one is, at the time of WakeAt,
// and after a release.
func (w *Waiter) Descriptor() int {
	if w.epoll == progress.NoDescriptor {
		return w.inner.Descriptor()
	}
	return w.epoll
}

// Arm arms the inner waiter. A hook that holds something back calls WakeAt first and, if that is
// due, Disarm instead of Arm.
func (w *Waiter) Arm() bool {
	w.armed = w.inner.Arm()
	return w.armed
}

// Disarm disarms the inner waiter if it is armed.
func (w *Waiter) Disarm() {
	if w.armed {
		w.armed = false
		w.inner.Disarm()
	}
}

// WakeAt makes the descriptor readable when stall is over, which the caller checks afterwards: a
// release between the two calls counts as well as a later one.
func (w *Waiter) WakeAt(stall *Stall) {
	if !stall.due.IsZero() {
		w.setTimer(time.Until(stall.due))
	}
}

// ring makes the descriptor readable.
func (w *Waiter) ring() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.setTimer(0)
	}
}

func (w *Waiter) setTimer(after time.Duration) {
	if w.timer == progress.NoDescriptor {
		return
	}
	// 0 would disarm the timer. The call fails only for invalid arguments.
	_ = unix.TimerfdSettime(w.timer, 0,
		&unix.ItimerSpec{Value: unix.NsecToTimespec(max(after, 1).Nanoseconds())}, nil)
}

// Clear consumes what has made the descriptor readable.
func (w *Waiter) Clear() {
	w.inner.Clear()
	if w.timer == progress.NoDescriptor {
		return
	}
	var count [8]byte
	_, _ = unix.Read(w.timer, count[:]) // EAGAIN if the other descriptor was readable
}
