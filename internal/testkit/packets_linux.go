// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// DialPackets connects a SOCK_SEQPACKET socket to a path, or to the abstract name that follows "@",
// for a peer that does what no library of ours would do. A timeout, unless it is 0, bounds each
// call that sends or receives.
func DialPackets(path string, timeout time.Duration) (descriptor int, err error) {
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	limit := unix.NsecToTimeval(timeout.Nanoseconds())
	if err := errors.Join(
		unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit),
		unix.Connect(s, &unix.SockaddrUnix{Name: path})); err != nil {
		return -1, errors.Join(fmt.Errorf("connect to %s: %w", path, err), unix.Close(s))
	}
	return s, nil
}
