// SPDX-License-Identifier: Apache-2.0

package controlmsg

import (
	"errors"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// setUserTimeout sets TCP_USER_TIMEOUT (RFC 5482), whose unit is the millisecond.
func setUserTimeout(conn *net.TCPConn, timeout time.Duration) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var optionErr error
	err = raw.Control(func(fd uintptr) {
		optionErr = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT,
			int(timeout.Milliseconds()))
	})
	return errors.Join(err, optionErr)
}

// isReset reports whether the peer or a machine in between has reset the connection.
func isReset(err error) bool { return errors.Is(err, unix.ECONNRESET) }
