package iwarp

import (
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// errno is a system call's error number, 0 for success. As a number it can be
// compared on the data path without making an error of it.
type errno = unix.Errno

// socket is a connected, non-blocking TCP socket that belongs to one thread.
type socket struct{ descriptor int }

const noDescriptor = -1

// detachSocket moves a connection out of the Go runtime's poller: conn is
// closed, its socket lives on under a descriptor of its own.
func detachSocket(conn *net.TCPConn) (socket, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return socket{noDescriptor}, fmt.Errorf("take socket: %w", err)
	}
	duplicate, dupErr := noDescriptor, error(nil)
	err = raw.Control(func(fd uintptr) {
		duplicate, dupErr = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	})
	if err == nil {
		err = dupErr
	}
	if err != nil {
		return socket{noDescriptor}, status.Errorf(status.OperatingSystem, "duplicate socket: %w", err)
	}
	if err := conn.Close(); err != nil {
		_ = unix.Close(duplicate)
		return socket{noDescriptor}, fmt.Errorf("release socket: %w", err)
	}
	return socket{duplicate}, nil
}

// reset ends the connection at once, and the peer sees that it was broken.
func (s *socket) reset() {
	_ = unix.SetsockoptLinger(s.descriptor, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	_ = unix.Close(s.descriptor)
	s.descriptor = noDescriptor
}

// close ends the connection without losing what the peer has yet to read: a
// socket that is closed with unread input resets the connection, and a reset
// overtakes data. So what has arrived is discarded first, up to a bound, for
// the peer may go on sending.
func (s *socket) close() {
	if s.descriptor == noDescriptor {
		return
	}
	_ = unix.Shutdown(s.descriptor, unix.SHUT_WR)
	var scratch [4096]byte
	for range closeDrainReads {
		if n, err := s.receive(scratch[:]); err != 0 || n == 0 {
			break
		}
	}
	_ = unix.Close(s.descriptor)
	s.descriptor = noDescriptor
}

const closeDrainReads = 64

// segmentBytes is TCP's effective maximum segment size at present, 0 if it is
// not known. It is the tcpi_snd_mss of TCP_INFO.
func (s socket) segmentBytes() int {
	n, err := unix.GetsockoptInt(s.descriptor, unix.IPPROTO_TCP, unix.TCP_MAXSEG)
	if err != nil {
		return 0
	}
	return n
}

// setBuffers applies the buffer sizes, which must be known before the
// handshake of TCP to have an influence on window scaling.
func (o Options) setBuffers(descriptor int) error {
	if o.SendBufferBytes > 0 {
		if err := unix.SetsockoptInt(descriptor, unix.SOL_SOCKET, unix.SO_SNDBUF, o.SendBufferBytes); err != nil {
			return status.Errorf(status.OperatingSystem, "set send buffer to %d bytes: %w", o.SendBufferBytes, err)
		}
	}
	if o.ReceiveBufferBytes > 0 {
		if err := unix.SetsockoptInt(descriptor, unix.SOL_SOCKET, unix.SO_RCVBUF, o.ReceiveBufferBytes); err != nil {
			return status.Errorf(status.OperatingSystem, "set receive buffer to %d bytes: %w", o.ReceiveBufferBytes, err)
		}
	}
	return nil
}

// keepAliveProbes is how many probes may stay unanswered. The user timeout,
// where it is set, decides before that.
const keepAliveProbes = 5

// apply sets what a connected socket needs: no delay of small messages, and
// noticing that the peer's machine is gone.
func (o Options) apply(conn *net.TCPConn) error {
	if err := conn.SetNoDelay(true); err != nil {
		return fmt.Errorf("set TCP_NODELAY: %w", err)
	}
	interval := (o.KeepAlive + time.Second - 1).Truncate(time.Second)
	err := conn.SetKeepAliveConfig(net.KeepAliveConfig{
		Enable: o.KeepAlive > 0, Idle: interval, Interval: interval, Count: keepAliveProbes,
	})
	if err != nil {
		return fmt.Errorf("set keep-alive: %w", err)
	}
	if o.UserTimeout < 0 {
		return nil
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return fmt.Errorf("set TCP_USER_TIMEOUT: %w", err)
	}
	var setErr error
	err = raw.Control(func(fd uintptr) {
		setErr = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(o.UserTimeout.Milliseconds()))
	})
	if err == nil {
		err = setErr
	}
	if err != nil {
		return fmt.Errorf("set TCP_USER_TIMEOUT: %w", err)
	}
	return nil
}
