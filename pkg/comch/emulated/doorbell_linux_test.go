// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/linux"
)

func isReadable(tb testing.TB, descriptor int) bool {
	tb.Helper()
	poll := []unix.PollFd{{Fd: int32(descriptor), Events: unix.POLLIN}}
	n, err := unix.Poll(poll, 0)
	if err != nil {
		tb.Fatal(err)
	}
	return n > 0
}

func newTestDoorbell(tb testing.TB) (*doorbell, int) {
	tb.Helper()
	bell, button, err := newDoorbell(new(cleanupQueue))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = bell.close() })
	return bell, button
}

func TestDoorbellRingsAndIsCleared(t *testing.T) {
	bell, button := newTestDoorbell(t)
	defer closeDescriptor(button)
	for range 3 {
		if isReadable(t, bell.descriptor) {
			t.Fatal("readable before it was rung")
		}
		linux.Wake(button)
		linux.Wake(button)
		if !isReadable(t, bell.descriptor) {
			t.Fatal("not readable after it was rung")
		}
		if err := bell.clear(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRingingAFullDoorbellDoesNotBlock(t *testing.T) {
	bell, button := newTestDoorbell(t)
	defer closeDescriptor(button)
	fillDoorbell(t, button)
	if err := unix.SetNonblock(button, false); err != nil {
		t.Fatal(err)
	}
	linux.Wake(button)
	for range 1 << 20 {
		if err := bell.clear(); err != nil {
			t.Fatal(err)
		}
		if !isReadable(t, bell.descriptor) {
			return
		}
	}
	t.Error("a full doorbell cannot be cleared")
}

func fillDoorbell(tb testing.TB, button int) {
	tb.Helper()
	for range 1 << 20 {
		if unix.Send(button, linux.WakeSignal, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL) != nil {
			return
		}
	}
	tb.Fatal("the doorbell never fills up")
}

func TestPeerCannotKeepTheDoorbellReadable(t *testing.T) {
	cases := map[string]func(button int) error{
		"close":            unix.Close,
		"shut down both":   func(button int) error { return unix.Shutdown(button, unix.SHUT_RDWR) },
		"shut down writes": func(button int) error { return unix.Shutdown(button, unix.SHUT_WR) },
		"clear O_NONBLOCK": func(button int) error { return unix.SetNonblock(button, false) },
		"disconnect":       disconnect,
	}
	for name, tamper := range cases {
		t.Run(name, func(t *testing.T) {
			bell, button := newTestDoorbell(t)
			if err := tamper(button); err != nil {
				t.Fatal(err)
			}
			if name != "close" {
				defer closeDescriptor(button)
			}
			if err := bell.clear(); err != nil {
				t.Error(err)
			}
			if isReadable(t, bell.descriptor) {
				t.Error("the doorbell stays readable")
			}
			bell.shutDown()
			if !isReadable(t, bell.descriptor) {
				t.Error("the doorbell cannot be shut down")
			}
			if err := bell.clear(); err != nil || isReadable(t, bell.descriptor) {
				t.Errorf("the doorbell stays readable after shutdown, error %v", err)
			}
		})
	}
}

func TestAClearedDoorbellIsSilentInEpollAfterShutdown(t *testing.T) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer closeDescriptor(epoll)
	bell, button := newTestDoorbell(t)
	defer closeDescriptor(button)
	event := unix.EpollEvent{Events: unix.EPOLLIN}
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, bell.descriptor, &event); err != nil {
		t.Fatal(err)
	}
	bell.shutDown()
	events := make([]unix.EpollEvent, 1)
	if n, err := unix.EpollWait(epoll, events, 0); n != 1 || err != nil {
		t.Errorf("epoll reports %d events after shutdown, error %v", n, err)
	}
	if err := bell.clear(); err != nil {
		t.Error(err)
	}
	if n, err := unix.EpollWait(epoll, events, 0); n != 0 || err != nil {
		t.Errorf("epoll reports %d events after clear, error %v", n, err)
	}
}

func TestOnlyUnixDatagramSocketsAreDoorbells(t *testing.T) {
	stream, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	internet, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	eventfd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	for _, descriptor := range []int{stream[0], stream[1], internet, eventfd} {
		if checkButton(descriptor) == nil {
			t.Errorf("descriptor %d was accepted", descriptor)
		}
		closeDescriptor(descriptor)
	}
	_, button := newTestDoorbell(t)
	defer closeDescriptor(button)
	if err := checkButton(button); err != nil {
		t.Error(err)
	}
}
