// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// loop is the event loop, which works until ctx ends. Its only event besides those of the queue is
// that end.
func (w *writer) loop(ctx context.Context) error {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("create an event loop: %w", err)
	}
	defer unix.Close(epoll)
	ended, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("create an event descriptor: %w", err)
	}
	defer unix.Close(ended)
	results, err := w.queue.EventDescriptor()
	if err != nil {
		return err
	}
	for _, descriptor := range []int{results, ended} {
		event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(descriptor)}
		if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, descriptor, &event); err != nil {
			return fmt.Errorf("watch a descriptor: %w", err)
		}
	}
	signaled := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(signaled)
		_, _ = unix.Write(ended, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // cannot fail
	})
	defer func() {
		if !stop() {
			<-signaled // before ended is closed
		}
	}()
	events := make([]unix.EpollEvent, 2)
	for {
		if err := w.step(); err != nil || w.isOver {
			return err
		}
		n, err := unix.EpollWait(epoll, events, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for events: %w", err)
		}
		for _, event := range events[:max(n, 0)] {
			if int(event.Fd) == ended {
				w.isEnding = true
				_ = unix.EpollCtl(epoll, unix.EPOLL_CTL_DEL, ended, nil)
			}
		}
	}
}
