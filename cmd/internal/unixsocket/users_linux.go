// SPDX-License-Identifier: Apache-2.0

package unixsocket

import (
	"fmt"
	"net"
	"os/user"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// UserIDs returns the numbers of users that are given by number or name.
func UserIDs(names []string) ([]uint32, error) {
	var ids []uint32
	for _, name := range names {
		text := name
		if u, err := user.Lookup(name); err == nil {
			text = u.Uid
		}
		id, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("user %q does not exist on this machine", name)
		}
		ids = append(ids, uint32(id))
	}
	return ids, nil
}

// Peer returns the user and the process at the other end of a Unix socket, as they were when it was
// connected.
func Peer(conn net.Conn) (user uint32, process int32, err error) {
	source, ok := conn.(syscall.Conn)
	if !ok {
		return 0, 0, fmt.Errorf("a %T has no descriptor", conn)
	}
	raw, err := source.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	var credentials *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		credentials, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return 0, 0, fmt.Errorf("find the peer's user: %w", err)
	}
	return credentials.Uid, credentials.Pid, nil
}
