// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// longestSleep bounds every wait, because time limits of requests are checked when their queue is
// polled.
const longestSleep = time.Second

// alarm is a descriptor that is readable when another one is, or a time is over.
type alarm struct {
	epoll, timer int
}

func newAlarm(descriptor int) (*alarm, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create a descriptor: epoll: %w", err)
	}
	timer, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create a descriptor: timerfd: %w", err),
			unix.Close(epoll))
	}
	a := &alarm{epoll: epoll, timer: timer}
	for _, watched := range []int{descriptor, timer} {
		event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(watched)}
		if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, watched, &event); err != nil {
			return nil, errors.Join(fmt.Errorf("create a descriptor: watch %d: %w", watched, err),
				a.close())
		}
	}
	return a, nil
}

// set makes the descriptor readable after a time; 0 ends that.
func (a *alarm) set(in time.Duration) {
	// It cannot fail: the descriptor is open, and the time is valid.
	_ = unix.TimerfdSettime(a.timer, 0,
		&unix.ItimerSpec{Value: unix.NsecToTimespec(in.Nanoseconds())}, nil)
}

func (a *alarm) close() error { return errors.Join(unix.Close(a.epoll), unix.Close(a.timer)) }

// isReadable waits until a descriptor is readable, at most for this time. A signal may end it.
func isReadable(descriptor int, limit time.Duration) bool {
	timeout := unix.NsecToTimespec(limit.Nanoseconds())
	n, err := unix.Ppoll([]unix.PollFd{{Fd: int32(descriptor), Events: unix.POLLIN}}, &timeout, nil)
	return err == nil && n > 0
}
