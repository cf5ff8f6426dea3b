// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"errors"
	"net"
	"sync"

	"golang.org/x/sys/unix"
)

// stuckEnds keeps the far ends of stuck descriptors from being collected as garbage, which closes
// them.
var stuckEnds sync.Map

// StuckDescriptor returns a descriptor as a hostile peer sends it: its last close blocks until
// release is called, or until this process ends: a lingering socket with data that nobody receives.
func StuckDescriptor() (descriptor int, release func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return -1, nil, err
	}
	defer func() { _ = listener.Close() }()
	dialed, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		return -1, nil, err
	}
	defer func() { _ = dialed.Close() }()
	accepted, err := listener.Accept()
	if err != nil {
		return -1, nil, err
	}
	stuckEnds.Store(accepted, nil)
	release = func() {
		stuckEnds.Delete(accepted)
		_ = accepted.(*net.TCPConn).SetLinger(0) // resets the connection
		_ = accepted.Close()
	}
	descriptor, err = fillConnection(dialed.(*net.TCPConn))
	if err != nil {
		release()
		return -1, nil, err
	}
	return descriptor, release, nil
}

// fillConnection returns a lingering duplicate of a connection, whose buffers it fills.
func fillConnection(connection *net.TCPConn) (int, error) {
	file, err := connection.File()
	if err != nil {
		return -1, err
	}
	defer func() { _ = file.Close() }()
	descriptor, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.SetNonblock(descriptor, true); err != nil {
		return -1, errors.Join(err, unix.Close(descriptor))
	}
	for err == nil {
		_, err = unix.Write(descriptor, make([]byte, 1<<20))
	}
	if err := errors.Join(unix.SetNonblock(descriptor, false), unix.SetsockoptLinger(descriptor,
		unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3600})); err != nil {
		return -1, errors.Join(err, unix.Close(descriptor))
	}
	return descriptor, nil
}
