// SPDX-License-Identifier: Apache-2.0

package iwarp

import (
	"fmt"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/tlsrecord"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// errno is the error number of a system call, 0 for success. The data path compares it without
// converting it to an error.
type errno = unix.Errno

// socket is a connected, non-blocking TCP socket that is used by one thread only: a descriptor, or
// a stream of a network that is not the kernel's.
type socket struct {
	descriptor int
	stream     network.Pollable // nil if there is a descriptor
	tls        *tlsLayer        // nil without TLS
}

const noDescriptor = -1

var noSocket = socket{descriptor: noDescriptor}

// detachSocket takes over a connection that was used by blocking calls.
func detachSocket(conn network.Stream) (socket, error) {
	switch conn := conn.(type) {
	case *tlsrecord.Stream:
		return detachTLS(conn)
	case *peekedStream:
		return detachSocket(conn.Stream)
	case *net.TCPConn:
		return detachTCP(conn)
	case network.Pollable:
		// The deadlines of the handshake do not concern the data path.
		if err := conn.SetDeadline(time.Time{}); err != nil {
			return noSocket, fmt.Errorf("detach stream: %w", err)
		}
		return socket{descriptor: noDescriptor, stream: conn}, nil
	}
	return noSocket, status.Errorf(status.NotSupported,
		"iwarp needs a TCP socket or a network.Pollable, and the network made a %T", conn)
}

// detachTCP detaches a connection from the Go runtime's poller. It duplicates the socket's
// descriptor and closes conn.
func detachTCP(conn *net.TCPConn) (socket, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return noSocket, fmt.Errorf("detach socket: %w", err)
	}
	duplicate, dupErr := noDescriptor, error(nil)
	err = raw.Control(func(fd uintptr) {
		duplicate, dupErr = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	})
	if err == nil {
		err = dupErr
	}
	if err != nil {
		return noSocket, status.Errorf(status.OperatingSystem,
			"duplicate socket: %w", err)
	}
	if err := conn.Close(); err != nil {
		_ = unix.Close(duplicate)
		return noSocket, fmt.Errorf("detach socket: %w", err)
	}
	return socket{descriptor: duplicate}, nil
}

// reset closes the socket with a TCP reset, so that the peer sees a failure.
func (s *socket) reset() {
	if s.tls != nil && s.tls.session != nil {
		s.tls.session.Clear()
	}
	if s.stream != nil {
		_ = s.stream.SetLinger(0)
		_ = s.stream.Close()
		*s = noSocket
		return
	}
	_ = unix.SetsockoptLinger(s.descriptor, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	_ = unix.Close(s.descriptor)
	*s = noSocket
}

// close closes the socket without losing data that the peer has not read. Closing a socket with
// unread input resets the connection, and a reset overtakes data. So close first discards the input
// that has arrived, up to a limit in case the peer keeps sending.
func (s *socket) close() {
	if *s == noSocket {
		return
	}
	if s.tls != nil {
		s.sayGoodbye()
	}
	if s.stream != nil {
		_ = s.stream.CloseWrite()
	} else {
		_ = unix.Shutdown(s.descriptor, unix.SHUT_WR)
	}
	var scratch [4096]byte
	for range closeDiscardReads {
		if n, err := s.receive(scratch[:]); err != 0 || n == 0 {
			break
		}
	}
	if s.stream != nil {
		_ = s.stream.Close()
	} else {
		_ = unix.Close(s.descriptor)
	}
	*s = noSocket
}

// closeDiscardReads is the largest number of reads that discard input.
const closeDiscardReads = 64

// streamSegmentBytes is the segment size of a stream that is not a kernel's socket: that of
// Ethernet with jumbo frames. A message then takes several FPDUs, which are large enough to be read
// straight into memory.
const streamSegmentBytes = 8948

// segmentBytes returns TCP's current effective maximum segment size, or 0 if it is unknown. It
// equals tcpi_snd_mss of TCP_INFO.
func (s *socket) segmentBytes() int {
	switch {
	case s.tls != nil:
		return recordSegmentBytes
	case s.stream != nil:
		return streamSegmentBytes
	}
	n, err := unix.GetsockoptInt(s.descriptor, unix.IPPROTO_TCP, unix.TCP_MAXSEG)
	if err != nil {
		return 0
	}
	return n
}

// control sets the options that a socket needs before the TCP handshake.
func (o Options) control(_, _ string, raw syscall.RawConn) error {
	var setErr error
	if err := raw.Control(func(fd uintptr) { setErr = o.setBuffers(int(fd)) }); err != nil {
		return err
	}
	return setErr
}

// setBuffers sets the sizes of the socket buffers. The sizes affect window scaling only if they are
// set before the TCP handshake.
func (o Options) setBuffers(descriptor int) error {
	if n := o.SendBufferBytes; n > 0 {
		if err := unix.SetsockoptInt(descriptor, unix.SOL_SOCKET, unix.SO_SNDBUF, n); err != nil {
			return status.Errorf(status.OperatingSystem,
				"set send buffer to %d bytes: %w", n, err)
		}
	}
	if n := o.ReceiveBufferBytes; n > 0 {
		if err := unix.SetsockoptInt(descriptor, unix.SOL_SOCKET, unix.SO_RCVBUF, n); err != nil {
			return status.Errorf(status.OperatingSystem,
				"set receive buffer to %d bytes: %w", n, err)
		}
	}
	return nil
}

// keepAliveProbes is how many probes may go unanswered before the connection is lost. The user
// timeout, if set, takes effect earlier.
const keepAliveProbes = 5

// apply sets the options of a connected TCP socket, which avoid delays of small messages and detect
// the loss of the peer's machine.
func (o Options) apply(stream network.Stream) error {
	conn, ok := stream.(*net.TCPConn)
	if !ok {
		return nil
	}
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
	raw, err := conn.SyscallConn()
	if err != nil {
		return fmt.Errorf("set TCP options: %w", err)
	}
	local, _ := conn.LocalAddr().(*net.TCPAddr)
	remote, _ := conn.RemoteAddr().(*net.TCPAddr)
	var setErr error
	err = raw.Control(func(fd uintptr) {
		if local != nil && remote != nil && staysOnMachine(local.IP, remote.IP) {
			// Without Reno, the socket works as it did.
			_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
		}
		if o.UserTimeout >= 0 {
			setErr = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT,
				int(o.UserTimeout.Milliseconds()))
		}
	})
	if err == nil {
		err = setErr
	}
	if err != nil {
		return fmt.Errorf("set TCP_USER_TIMEOUT: %w", err)
	}
	return nil
}

// staysOnMachine reports whether both ends of a connection are on this machine. Such a connection
// needs no pacing: BBR arms a timer for each burst that it sends, which can halve the throughput of
// large blocks on a virtual machine whose timers are the hypervisor's. All kernels have Reno, and
// any process may ask for it.
func staysOnMachine(local, remote net.IP) bool {
	return remote.IsLoopback() || local.Equal(remote)
}
