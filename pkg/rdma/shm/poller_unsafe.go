package shm

import (
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// maxEvents bounds the events of one call. The kernel rotates its ready list, so sockets beyond the
// limit come first in the next call.
const maxEvents = 64

// wakeSlot identifies the wake-up descriptor, which belongs to no connection.
const wakeSlot = -1

// poller is an epoll instance that reports which sockets of a completion queue are readable. It is
// level-triggered, so its own descriptor is readable exactly while a socket or the wake-up
// descriptor is, and another epoll instance can wait for it.
type poller struct {
	descriptor     int
	wakeDescriptor int // eventfd that other threads write to
	events         [maxEvents]unix.EpollEvent
}

func newPoller() (*poller, error) {
	descriptor, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, status.Errorf(status.OperatingSystem, "create epoll descriptor: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		_ = unix.Close(descriptor)
		return nil, status.Errorf(status.OperatingSystem, "create event descriptor: %w", err)
	}
	p := &poller{descriptor: descriptor, wakeDescriptor: wake}
	if err := p.add(wake, wakeSlot); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *poller) close() {
	_ = unix.Close(p.wakeDescriptor)
	_ = unix.Close(p.descriptor)
}

// add starts reporting on the socket of the connection in slot.
func (p *poller) add(descriptor int, slot int32) error {
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: slot}
	if err := unix.EpollCtl(p.descriptor, unix.EPOLL_CTL_ADD, descriptor, &event); err != nil {
		return status.Errorf(status.OperatingSystem, "watch socket with epoll: %w", err)
	}
	return nil
}

func (p *poller) remove(descriptor int) {
	_ = unix.EpollCtl(p.descriptor, unix.EPOLL_CTL_DEL, descriptor, nil)
}

// ready returns events without waiting. Because it cannot block, the call is raw.
func (p *poller) ready() []unix.EpollEvent {
	n, _, err := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.descriptor),
		uintptr(unsafe.Pointer(&p.events[0])), maxEvents, 0, 0, 0)
	if err != 0 {
		return nil
	}
	return p.events[:n]
}

// wake makes the poller's descriptor readable. Any goroutine may call it.
func (p *poller) wake() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	// EAGAIN would mean that the counter is at its maximum, so the descriptor is readable anyway.
	_, _ = unix.Write(p.wakeDescriptor, one[:])
}

// clearWake undoes wake.
func (p *poller) clearWake() {
	var count [8]byte
	_, _, _ = unix.RawSyscall(unix.SYS_READ, uintptr(p.wakeDescriptor),
		uintptr(unsafe.Pointer(&count[0])), uintptr(len(count)))
}
