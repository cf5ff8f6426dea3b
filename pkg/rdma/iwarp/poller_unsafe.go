package iwarp

import (
	"encoding/binary"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// maxEvents bounds the events of one call. The kernel rotates its ready list, so sockets beyond the
// limit come first in the next call.
const maxEvents = 64

// wakeSlot identifies the wake-up descriptor, which belongs to no connection.
const wakeSlot = -1

// poller is an epoll instance that reports which sockets of a completion queue are ready. It is
// level-triggered, so its own descriptor is readable exactly while a socket is ready or the wake-up
// descriptor is, and another epoll instance can wait for it. Streams that are not sockets of the
// kernel are asked in turn, and the descriptor does not report them.
type poller struct {
	descriptor     int
	wakeDescriptor int // eventfd that other threads write to
	events         [maxEvents]unix.EpollEvent

	streams []watchedStream
	asked   int // index of the stream that was asked last
}

// watchedStream is a stream, and what the poller reports about it.
type watchedStream struct {
	stream   network.Pollable
	slot     int32
	writable bool // also report when the stream is writable
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
	if err := p.control(unix.EPOLL_CTL_ADD, wake, wakeSlot, unix.EPOLLIN); err != nil {
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
func (p *poller) add(s *socket, slot int32) error {
	if s.stream != nil {
		p.streams = append(p.streams, watchedStream{stream: s.stream, slot: slot})
		return nil
	}
	return p.control(unix.EPOLL_CTL_ADD, s.descriptor, slot, unix.EPOLLIN)
}

// watchWritable sets whether the poller also reports when the socket is writable.
func (p *poller) watchWritable(s *socket, slot int32, on bool) error {
	if s.stream != nil {
		p.streams[p.stream(slot)].writable = on
		return nil
	}
	events := uint32(unix.EPOLLIN)
	if on {
		events |= unix.EPOLLOUT
	}
	return p.control(unix.EPOLL_CTL_MOD, s.descriptor, slot, events)
}

// stream returns the index of the stream in slot.
func (p *poller) stream(slot int32) int {
	return slices.IndexFunc(p.streams, func(w watchedStream) bool { return w.slot == slot })
}

func (p *poller) remove(s *socket, slot int32) {
	if s.stream != nil {
		i := p.stream(slot)
		p.streams = slices.Delete(p.streams, i, i+1)
		return
	}
	_ = unix.EpollCtl(p.descriptor, unix.EPOLL_CTL_DEL, s.descriptor, nil)
}

func (p *poller) control(operation, descriptor int, slot int32, events uint32) error {
	event := unix.EpollEvent{Events: events, Fd: slot}
	if err := unix.EpollCtl(p.descriptor, operation, descriptor, &event); err != nil {
		return status.Errorf(status.OperatingSystem, "watch socket with epoll: %w", err)
	}
	return nil
}

// ready returns events for at most limit sockets, and for streams, without waiting. Because it
// cannot block, the call is raw.
func (p *poller) ready(limit int) []unix.EpollEvent {
	n, _, err := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.descriptor),
		uintptr(unsafe.Pointer(&p.events[0])), uintptr(min(limit, maxEvents)), 0, 0, 0)
	if err != 0 {
		return nil
	}
	if len(p.streams) > 0 {
		n = uintptr(p.askStreams(int(n)))
	}
	return p.events[:n]
}

// askStreams appends the events of the streams to the first n, and returns the new number of
// events. Streams for which there is no space come first in the next call.
func (p *poller) askStreams(n int) int {
	for range p.streams {
		if n == maxEvents {
			break
		}
		p.asked = (p.asked + 1) % len(p.streams)
		w := &p.streams[p.asked]
		var events uint32
		if w.stream.Readable() {
			events |= unix.EPOLLIN
		}
		if w.writable && w.stream.Writable() {
			events |= unix.EPOLLOUT
		}
		if events != 0 {
			p.events[n] = unix.EpollEvent{Events: events, Fd: w.slot}
			n++
		}
	}
	return n
}

// readable reports whether the event says that the socket is readable. Errors and hang-ups count as
// readable, because reading reports them.
func readable(e *unix.EpollEvent) bool { return e.Events&^unix.EPOLLOUT != 0 }

// writable reports whether the event says that the socket is writable.
func writable(e *unix.EpollEvent) bool { return e.Events&unix.EPOLLOUT != 0 }

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
