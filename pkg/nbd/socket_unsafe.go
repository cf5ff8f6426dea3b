// SPDX-License-Identifier: Apache-2.0

package nbd

import (
	"fmt"
	"net"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/linux"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// socket is the descriptor of a connected stream socket that one thread uses without blocking.
type socket int

// detach takes a connection away from the Go runtime's poller. It duplicates the descriptor and
// closes conn.
func detach(conn net.Conn) (socket, error) {
	source, ok := conn.(syscall.Conn)
	if !ok {
		return -1, status.Errorf(status.NotSupported, "a %T has no descriptor", conn)
	}
	raw, err := source.SyscallConn()
	if err != nil {
		return -1, fmt.Errorf("detach socket: %w", err)
	}
	duplicate, dupErr := -1, error(nil)
	err = raw.Control(func(fd uintptr) {
		duplicate, dupErr = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	})
	if err == nil {
		err = dupErr
	}
	if err != nil {
		return -1, status.Errorf(status.OperatingSystem, "duplicate socket: %w", err)
	}
	if err := conn.Close(); err != nil {
		_ = unix.Close(duplicate)
		return -1, fmt.Errorf("detach socket: %w", err)
	}
	return socket(duplicate), nil
}

func (s socket) close() { _ = unix.Close(int(s)) }

// discardReads bounds what closeGently reads.
const discardReads = 64

// closeGently closes the socket without losing replies that the client has not read. Closing a
// socket with unread input resets the connection, and a reset overtakes data.
func (s socket) closeGently() {
	_ = unix.Shutdown(int(s), unix.SHUT_WR)
	var scratch [4096]byte
	for range discardReads {
		if n, err := s.receive(scratch[:], nil); err != 0 || n == 0 {
			break
		}
	}
	s.close()
}

// receive reads into target and, once that is full, into tail. It returns the total number of
// bytes, 0 at the end of the input.
func (s socket) receive(target, tail []byte) (int, unix.Errno) {
	return linux.Receive(int(s), target, tail)
}

// send sends as much of g as fits into the send buffer, and returns the number of bytes.
func (s socket) send(g *linux.Gather) (int, unix.Errno) {
	return linux.Send(int(s), g)
}

// peerState reports whether the peer will send nothing more, and whether the connection is lost.
func (s socket) peerState() (isHalf, isLost bool) {
	state := [1]unix.PollFd{{Fd: int32(s), Events: unix.POLLRDHUP}}
	if _, err := unix.Poll(state[:], 0); err != nil {
		return false, false
	}
	return state[0].Revents&unix.POLLRDHUP != 0,
		state[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
}

// peerStateOf is peerState for a connection of the Go runtime, which may have been closed.
func peerStateOf(conn syscall.Conn) (isHalf, isLost bool) {
	raw, err := conn.SyscallConn()
	if err != nil || raw.Control(func(fd uintptr) {
		isHalf, isLost = socket(fd).peerState()
	}) != nil {
		return true, false // what it has received is on its way
	}
	return isHalf, isLost
}

// poller is an epoll instance that reports which sockets of a worker are ready. It is
// level-triggered, so its own descriptor is readable exactly while a socket is ready, and an engine
// can sleep on it.
type poller struct {
	descriptor int
	events     [maxEvents]event
}

// event is what the poller reports about one socket.
type event = unix.EpollEvent

// maxEvents bounds the events of one call. The kernel rotates its list, so sockets beyond the limit
// come first in the next call.
const maxEvents = 64

func newPoller() (*poller, error) {
	descriptor, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, status.Errorf(status.OperatingSystem, "create epoll descriptor: %w", err)
	}
	return &poller{descriptor: descriptor}, nil
}

func (p *poller) close() { _ = unix.Close(p.descriptor) }

func (p *poller) add(s socket, slot int32) error {
	return p.control(unix.EPOLL_CTL_ADD, s, slot, unix.EPOLLIN)
}

// watch sets what the poller reports about the socket: always that the connection is lost, and if
// asked for that it is readable or writable.
func (p *poller) watch(s socket, slot int32, readable, writable bool) error {
	events := uint32(0)
	if readable {
		events |= unix.EPOLLIN
	}
	if writable {
		events |= unix.EPOLLOUT
	}
	return p.control(unix.EPOLL_CTL_MOD, s, slot, events)
}

func (p *poller) remove(s socket) {
	_ = unix.EpollCtl(p.descriptor, unix.EPOLL_CTL_DEL, int(s), nil)
}

func (p *poller) control(operation int, s socket, slot int32, events uint32) error {
	event := unix.EpollEvent{Events: events, Fd: slot}
	if err := unix.EpollCtl(p.descriptor, operation, int(s), &event); err != nil {
		return status.Errorf(status.OperatingSystem, "watch socket with epoll: %w", err)
	}
	return nil
}

// ready returns the events of sockets that are ready. Because it cannot block, the call is raw.
func (p *poller) ready() []event {
	n, _, err := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.descriptor),
		uintptr(unsafe.Pointer(&p.events[0])), maxEvents, 0, 0, 0)
	if err != 0 {
		return nil
	}
	return p.events[:n]
}

// readable, writable, and lost report what an event says.
func readable(e *event) bool { return e.Events&unix.EPOLLIN != 0 }
func writable(e *event) bool { return e.Events&unix.EPOLLOUT != 0 }
func lost(e *event) bool     { return e.Events&(unix.EPOLLHUP|unix.EPOLLERR) != 0 }

// errAgain reports whether a socket was not ready.
func errAgain(err unix.Errno) bool { return err == unix.EAGAIN }

// socketPair returns two connected stream sockets, one of them for the Go runtime's poller.
func socketPair() (socket, net.Conn, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|
		unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, nil, status.Errorf(status.OperatingSystem, "create socket pair: %w", err)
	}
	conn, err := connOf(pair[1])
	if err != nil {
		_ = unix.Close(pair[0])
		return -1, nil, err
	}
	return socket(pair[0]), conn, nil
}
