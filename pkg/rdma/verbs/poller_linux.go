//go:build verbs

package verbs

import (
	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// poller is one descriptor for what can wake a completion queue's thread: the
// device's notifications, and an alarm that other threads ring.
type poller struct {
	descriptor int
	alarm      int // eventfd, private to this process
}

func newPoller(notifications int) (*poller, error) {
	descriptor, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, status.Errorf(status.OperatingSystem, "create epoll descriptor: %w", err)
	}
	alarm, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		_ = unix.Close(descriptor)
		return nil, status.Errorf(status.OperatingSystem, "create event descriptor: %w", err)
	}
	p := &poller{descriptor: descriptor, alarm: alarm}
	for _, d := range []int{notifications, alarm} {
		event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(d)}
		if err := unix.EpollCtl(descriptor, unix.EPOLL_CTL_ADD, d, &event); err != nil {
			p.close()
			return nil, status.Errorf(status.OperatingSystem, "watch descriptor: %w", err)
		}
	}
	return p, nil
}

func (p *poller) close() {
	_ = unix.Close(p.alarm)
	_ = unix.Close(p.descriptor)
}

// ring wakes the thread. A full counter means that it has been rung already.
func (p *poller) ring() { _, _ = unix.Write(p.alarm, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

// silence consumes the ringing.
func (p *poller) silence() {
	var counter [8]byte
	_, _ = unix.Read(p.alarm, counter[:])
}
