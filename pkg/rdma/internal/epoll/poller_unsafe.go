// SPDX-License-Identifier: Apache-2.0

// Package epoll tells the completion queues of the RDMA providers in software which of their
// sockets are ready.
package epoll

import (
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// MaxEvents bounds the events of one call. The kernel rotates its ready list, so sockets beyond the
// limit come first in the next call.
const MaxEvents = 64

// WakeSlot identifies the wake-up descriptor, which belongs to no connection.
const WakeSlot = -1

// Event is the readiness of the socket of the connection in slot Fd, for Readable and Writable.
type Event = unix.EpollEvent

// Poller is an epoll instance that reports which sockets of a completion queue are ready. It is
// level-triggered, so its own descriptor is readable exactly while a socket is ready or the wake-up
// descriptor is, and another epoll instance can wait for it. Only Wake may be called from any
// goroutine.
type Poller struct {
	descriptor     int
	wakeDescriptor int // eventfd that other threads write to
	events         [MaxEvents]Event
}

// New returns a Poller without sockets.
func New() (*Poller, error) {
	descriptor, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, status.Errorf(status.OperatingSystem, "create epoll descriptor: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		_ = unix.Close(descriptor)
		return nil, status.Errorf(status.OperatingSystem, "create event descriptor: %w", err)
	}
	p := &Poller{descriptor: descriptor, wakeDescriptor: wake}
	if err := p.Add(wake, WakeSlot); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// Close releases the descriptors.
func (p *Poller) Close() {
	_ = unix.Close(p.wakeDescriptor)
	_ = unix.Close(p.descriptor)
}

// Descriptor returns the epoll descriptor.
func (p *Poller) Descriptor() int { return p.descriptor }

// Add starts reporting whether the socket of the connection in slot is readable.
func (p *Poller) Add(descriptor int, slot int32) error {
	return p.control(unix.EPOLL_CTL_ADD, descriptor, slot, unix.EPOLLIN)
}

// WatchWritable sets whether the poller also reports when the socket is writable.
func (p *Poller) WatchWritable(descriptor int, slot int32, on bool) error {
	events := uint32(unix.EPOLLIN)
	if on {
		events |= unix.EPOLLOUT
	}
	return p.control(unix.EPOLL_CTL_MOD, descriptor, slot, events)
}

// Remove stops reporting on a socket.
func (p *Poller) Remove(descriptor int) {
	_ = unix.EpollCtl(p.descriptor, unix.EPOLL_CTL_DEL, descriptor, nil)
}

func (p *Poller) control(operation, descriptor int, slot int32, events uint32) error {
	event := Event{Events: events, Fd: slot}
	if err := unix.EpollCtl(p.descriptor, operation, descriptor, &event); err != nil {
		return status.Errorf(status.OperatingSystem, "watch socket with epoll: %w", err)
	}
	return nil
}

// Ready returns events for at most limit sockets, with their slots in Fd, without waiting. Because
// it cannot block, the call is raw. The events are valid until the next call; there is room for
// MaxEvents.
func (p *Poller) Ready(limit int) []Event {
	n, _, err := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.descriptor),
		uintptr(unsafe.Pointer(&p.events[0])), uintptr(min(limit, MaxEvents)), 0, 0, 0)
	if err != 0 {
		n = 0 // EINTR
	}
	return p.events[:n]
}

// Wake makes the poller's descriptor readable.
func (p *Poller) Wake() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	// EAGAIN would mean that the counter is at its maximum, so the descriptor is readable anyway.
	_, _ = unix.Write(p.wakeDescriptor, one[:])
}

// ClearWake undoes Wake.
func (p *Poller) ClearWake() {
	var count [8]byte
	_, _, _ = unix.RawSyscall(unix.SYS_READ, uintptr(p.wakeDescriptor),
		uintptr(unsafe.Pointer(&count[0])), uintptr(len(count)))
}

// Readable reports whether the event says that the socket is readable. Errors and hang-ups count as
// readable, because reading reports them.
func Readable(e *Event) bool { return e.Events&^unix.EPOLLOUT != 0 }

// Writable reports whether the event says that the socket is writable.
func Writable(e *Event) bool { return e.Events&unix.EPOLLOUT != 0 }
