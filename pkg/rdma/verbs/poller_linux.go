// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package verbs

import (
	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// poller combines everything that can wake a completion queue's thread into one descriptor: the
// notifications of its device queues, and signals from other threads.
type poller struct {
	descriptor int // epoll
	eventFD
}

func newPoller() (*poller, error) {
	descriptor, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, status.Errorf(status.OperatingSystem, "create epoll descriptor: %w", err)
	}
	wake, err := newEventFD()
	if err != nil {
		_ = unix.Close(descriptor)
		return nil, err
	}
	p := &poller{descriptor: descriptor, eventFD: wake}
	if err := p.add(int(wake)); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *poller) add(descriptor int) error {
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(descriptor)}
	err := unix.EpollCtl(p.descriptor, unix.EPOLL_CTL_ADD, descriptor, &event)
	if err != nil {
		return status.Errorf(status.OperatingSystem, "add descriptor %d to epoll: %w", descriptor,
			err)
	}
	return nil
}

// remove does nothing if add has failed.
func (p *poller) remove(descriptor int) {
	_ = unix.EpollCtl(p.descriptor, unix.EPOLL_CTL_DEL, descriptor, nil)
}

func (p *poller) close() {
	p.eventFD.close()
	_ = unix.Close(p.descriptor)
}
