// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/comch"
)

// UnixSockets returns the kernel's Unix sockets in directory. They are the default of
// Options.Sockets.
func UnixSockets(directory string) Sockets { return unixSockets{directory: directory} }

// unixSockets implements Sockets.
type unixSockets struct {
	directory string
	peer      string // as in Options
}

func (unixSockets) Pair() (first, second Socket, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("create socket pair: %w", err)
	}
	one, oneErr := connOf(pair[0])
	other, otherErr := connOf(pair[1])
	if err := errors.Join(oneErr, otherErr); err != nil {
		for _, conn := range []*net.UnixConn{one, other} {
			if conn != nil {
				_ = conn.Close() // nothing has been sent
			}
		}
		return nil, nil, err
	}
	return newUnixSocket(one), newUnixSocket(other), nil
}

// connOf returns a connection on a socket. It takes ownership of descriptor.
func connOf(descriptor int) (*net.UnixConn, error) {
	file := os.NewFile(uintptr(descriptor), "socket")
	defer func() { _ = file.Close() }()
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("use socket: %w", err)
	}
	return conn.(*net.UnixConn), nil
}

// unixSocket implements Socket.
type unixSocket struct {
	*net.UnixConn
	control []byte // of the packet read last
}

func newUnixSocket(conn *net.UnixConn) *unixSocket { return &unixSocket{UnixConn: conn} }

func (s *unixSocket) ReadPacket(packet []byte, passed []int) (length, descriptors int, err error) {
	if size := unix.CmsgSpace(4 * len(passed)); len(s.control) != size {
		s.control = make([]byte, size)
	}
	length, controlLength, flags, _, err := s.ReadMsgUnix(packet, s.control)
	descriptors, controlErr := parseControl(s.control[:controlLength], passed)
	switch {
	case err != nil:
		return 0, descriptors, err
	case controlErr != nil:
		return 0, descriptors, controlErr
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		return length, descriptors, ErrTruncated
	}
	return length, descriptors, nil
}

// parseControl copies the descriptors of a control message to passed, and closes those that do not
// fit: the kernel aligns the size of the buffer and may install one more.
func parseControl(control []byte, passed []int) (count int, err error) {
	if len(control) == 0 {
		return 0, nil
	}
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return 0, fmt.Errorf("parse control data: %w", err)
	}
	for i := range messages {
		list, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue // not descriptors
		}
		kept := copy(passed[count:], list)
		count += kept
		for _, descriptor := range list[kept:] {
			closeDescriptor(descriptor)
		}
	}
	return count, nil
}

func (s *unixSocket) WritePacket(packet []byte, passed []int) error {
	var rights []byte
	if len(passed) > 0 {
		rights = unix.UnixRights(passed...)
	}
	_, _, err := s.WriteMsgUnix(packet, rights, nil)
	return err
}

func (s *unixSocket) Disconnect() {
	if raw, err := s.SyscallConn(); err == nil {
		// Both fail only on a socket that is closed.
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
	}
}

func (s *unixSocket) HasPeerLeft() bool {
	raw, err := s.SyscallConn()
	if err != nil {
		return true
	}
	left := false
	err = raw.Control(func(fd uintptr) {
		// Unlike the end that a read finds, a hang-up does not wait behind the packets.
		poll := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		_, _ = unix.Poll(poll[:], 0) // no signal interrupts it, because it does not wait
		left = poll[0].Revents != 0
	})
	return left || err != nil
}

// Peer asks the kernel for the process at the other end.
func (s *unixSocket) Peer() (comch.Peer, error) {
	raw, err := s.SyscallConn()
	if err != nil {
		return comch.Peer{}, fmt.Errorf("get peer credentials: %w", err)
	}
	var credentials *unix.Ucred
	var optionErr error
	err = raw.Control(func(fd uintptr) {
		credentials, optionErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, optionErr); err != nil {
		return comch.Peer{}, fmt.Errorf("get peer credentials: %w", err)
	}
	return comch.Peer{Known: true, PID: int(credentials.Pid), UID: credentials.Uid,
		GID: credentials.Gid}, nil
}
