package emulated

import (
	"testing"

	"golang.org/x/sys/unix"
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
	bell, push, err := newDoorbell(new(disposal))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = bell.close() })
	return bell, push
}

func TestDoorbellRingsAndDrains(t *testing.T) {
	bell, push := newTestDoorbell(t)
	defer closeDescriptor(push)
	for range 3 {
		if isReadable(t, bell.descriptor) {
			t.Fatal("readable before it was rung")
		}
		ringPush(push)
		ringPush(push)
		if !isReadable(t, bell.descriptor) {
			t.Fatal("not readable after it was rung")
		}
		if err := bell.drain(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRingingAFullDoorbellDoesNotBlock(t *testing.T) {
	bell, push := newTestDoorbell(t)
	defer closeDescriptor(push)
	fill(t, push)
	if err := unix.SetNonblock(push, false); err != nil {
		t.Fatal(err)
	}
	ringPush(push)
	for range 1 << 20 {
		if err := bell.drain(); err != nil {
			t.Fatal(err)
		}
		if !isReadable(t, bell.descriptor) {
			return
		}
	}
	t.Error("a full doorbell cannot be drained")
}

func fill(tb testing.TB, push int) {
	tb.Helper()
	for range 1 << 20 {
		if unix.Send(push, ringSignal, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL) != nil {
			return
		}
	}
	tb.Fatal("the doorbell does not fill up")
}

func TestNothingAPeerDoesToThePushKeepsTheDoorbellReadable(t *testing.T) {
	cases := map[string]func(push int) error{
		"close":            unix.Close,
		"shut down both":   func(push int) error { return unix.Shutdown(push, unix.SHUT_RDWR) },
		"shut down writes": func(push int) error { return unix.Shutdown(push, unix.SHUT_WR) },
		"clear O_NONBLOCK": func(push int) error { return unix.SetNonblock(push, false) },
		"disconnect":       disconnect,
	}
	for name, spoil := range cases {
		t.Run(name, func(t *testing.T) {
			bell, push := newTestDoorbell(t)
			if err := spoil(push); err != nil {
				t.Fatal(err)
			}
			if name != "close" {
				defer closeDescriptor(push)
			}
			if err := bell.drain(); err != nil {
				t.Error(err)
			}
			if isReadable(t, bell.descriptor) {
				t.Error("the doorbell stays readable")
			}
			bell.hangUp()
			if !isReadable(t, bell.descriptor) {
				t.Error("the doorbell can no longer be hung up")
			}
			if err := bell.drain(); err != nil || isReadable(t, bell.descriptor) {
				t.Errorf("the doorbell stays readable after it was hung up, %v", err)
			}
		})
	}
}

func TestHungUpDoorbellLeavesEpollSilent(t *testing.T) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer closeDescriptor(epoll)
	bell, push := newTestDoorbell(t)
	defer closeDescriptor(push)
	event := unix.EpollEvent{Events: unix.EPOLLIN}
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, bell.descriptor, &event); err != nil {
		t.Fatal(err)
	}
	bell.hangUp()
	events := make([]unix.EpollEvent, 1)
	if n, err := unix.EpollWait(epoll, events, 0); n != 1 || err != nil {
		t.Errorf("epoll reports %d, %v after the end", n, err)
	}
	if err := bell.drain(); err != nil {
		t.Error(err)
	}
	if n, err := unix.EpollWait(epoll, events, 0); n != 0 || err != nil {
		t.Errorf("epoll reports %d, %v after the end was seen", n, err)
	}
}

func TestDoorbellsOfOtherKindsAreRefused(t *testing.T) {
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
		if checkPush(descriptor) == nil {
			t.Errorf("descriptor %d was accepted", descriptor)
		}
		closeDescriptor(descriptor)
	}
	_, push := newTestDoorbell(t)
	defer closeDescriptor(push)
	if err := checkPush(push); err != nil {
		t.Error(err)
	}
}
