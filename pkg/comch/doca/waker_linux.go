// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package doca

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/progress"
)

// waker is the descriptor of a consumer or producer. It is readable if the progress engine
// signals, or if the connection has ended, of which the progress engine need not know. It stays
// when the progress engine is destroyed before its owner stops sleeping on it.
//
// The zero waker has no descriptor.
type waker struct {
	open  bool
	epoll int // watches the progress engine and event
	event int // eventfd
	count [8]byte
}

// newWaker returns a waker for a progress engine's descriptor, which may be NoDescriptor.
func newWaker(descriptor int) (waker, error) {
	if descriptor == progress.NoDescriptor {
		return waker{}, nil
	}
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return waker{}, fmt.Errorf("create descriptor: epoll: %w", err)
	}
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return waker{}, errors.Join(fmt.Errorf("create descriptor: eventfd: %w", err), unix.Close(epoll))
	}
	for _, fd := range []int{descriptor, event} {
		interest := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
		if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, &interest); err != nil {
			return waker{}, errors.Join(fmt.Errorf("watch descriptor %d: %w", fd, err),
				unix.Close(epoll), unix.Close(event))
		}
	}
	return waker{open: true, epoll: epoll, event: event}, nil
}

// Descriptor implements progress.Waiter.
func (w *waker) Descriptor() int {
	if !w.open {
		return progress.NoDescriptor
	}
	return w.epoll
}

// wake makes the descriptor readable until clear. Any goroutine may call it before close.
func (w *waker) wake() {
	if w.open {
		// The write can only fail on a full counter, which is readable as well.
		_, _ = unix.Write(w.event, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

func (w *waker) clear() {
	if w.open {
		_, _ = unix.Read(w.event, w.count[:])
	}
}

func (w *waker) close() error {
	if !w.open {
		return nil
	}
	w.open = false
	return errors.Join(unix.Close(w.epoll), unix.Close(w.event))
}

// allocate returns zeroed memory that does not belong to the Go heap.
func allocate(length int) ([]byte, error) {
	bytes, err := unix.Mmap(-1, 0, length, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("allocate %d bytes of message memory: %w", length, err)
	}
	return bytes, nil
}

func free(bytes []byte) error {
	if bytes == nil {
		return nil
	}
	return unix.Munmap(bytes)
}
