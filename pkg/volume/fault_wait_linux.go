//go:build faultinject

package volume

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// faultWait sleeps on another queue's descriptor and on a timer at once: it is
// an epoll set of the two.
type faultWait struct{ epoll, timer int }

func newFaultWait(inner Queue) (*faultWait, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create epoll set: %w", err)
	}
	timer, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create timer: %w", err), unix.Close(epoll))
	}
	w := &faultWait{epoll: epoll, timer: timer}
	for _, fd := range []int{timer, inner.Descriptor()} {
		if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil {
			return nil, errors.Join(fmt.Errorf("watch descriptor %d: %w", fd, err), w.close())
		}
	}
	return w, nil
}

// wakeAfter makes the set readable after d. A timer of 0 would be off.
func (w *faultWait) wakeAfter(d time.Duration) {
	when := unix.ItimerSpec{Value: unix.NsecToTimespec(max(d, 1).Nanoseconds())}
	// Fails for invalid arguments only.
	_ = unix.TimerfdSettime(w.timer, 0, &when, nil)
}

func (w *faultWait) drain() {
	var count [8]byte
	_, _ = unix.Read(w.timer, count[:]) // EAGAIN: the other descriptor it was
}

func (w *faultWait) close() error { return errors.Join(unix.Close(w.epoll), unix.Close(w.timer)) }

// Descriptor implements progress.Waiter.
func (l *faultQueue) Descriptor() int { return l.wait.epoll }

// Arm implements progress.Waiter.
func (l *faultQueue) Arm() bool {
	if l.isDue() {
		l.inner.Disarm() // it may have been armed before
		return false
	}
	if len(l.delayed) > 0 {
		l.wait.wakeAfter(time.Until(l.delayed[0].due))
	}
	return l.inner.Arm()
}

// Disarm implements progress.Waiter.
func (l *faultQueue) Disarm() { l.inner.Disarm() }

// Drain implements progress.Waiter.
func (l *faultQueue) Drain() {
	l.inner.Drain()
	l.wait.drain()
}
