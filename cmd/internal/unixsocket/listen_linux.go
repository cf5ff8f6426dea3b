// SPDX-License-Identifier: Apache-2.0

// Package unixsocket makes the sockets that programs listen on for processes of the same machine.
package unixsocket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/endpoint"
	"github.com/zc-relay/zc-relay/internal/files"
)

// Listen listens on a Unix socket whose file has the given mode. It replaces the socket of a
// process that was killed.
func Listen(path string, mode fs.FileMode) (net.Listener, error) {
	if err := endpoint.CheckSocketPath(path); err != nil {
		return nil, fmt.Errorf("socket %q: %w", path, err)
	}
	config := net.ListenConfig{Control: func(_, _ string, socket syscall.RawConn) error {
		// Set before bind, so that the socket never has another mode.
		var failed error
		err := socket.Control(func(fd uintptr) {
			failed = unix.Fchmod(int(fd), uint32(mode.Perm()))
		})
		return errors.Join(err, failed)
	}}
	listener, err := config.Listen(context.Background(), "unix", path)
	if errors.Is(err, unix.EADDRINUSE) {
		if err := removeStale(path); err != nil {
			return nil, err
		}
		listener, err = config.Listen(context.Background(), "unix", path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errNoDirectory(path, err)
	}
	if err == nil {
		if err = restoreMode(path, mode); err != nil {
			err = errors.Join(err, listener.Close())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("socket %q: %w", path, err)
	}
	return listener, nil
}

// Check returns why Listen would fail, and changes nothing. The error is unix.EADDRINUSE if another
// process listens on the socket.
func Check(path string) error {
	err := files.CheckCreatable(path)
	if errors.Is(err, fs.ErrNotExist) {
		return errNoDirectory(path, err)
	}
	if err != nil {
		return fmt.Errorf("socket %q: %w", path, err)
	}
	if err = checkStale(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func errNoDirectory(path string, err error) error {
	return fmt.Errorf("socket %q: its directory does not exist (systemd makes it with RuntimeDirectory=): %w",
		path, err)
}

// restoreMode gives a new socket the permissions that the umask took from it.
func restoreMode(path string, mode fs.FileMode) error {
	// Whoever may write to the directory could put something else in the place of the socket.
	file, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(file)
	var info unix.Stat_t
	if err := unix.Fstat(file, &info); err != nil {
		return err
	}
	if info.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return errors.New("another file has taken its place")
	}
	if info.Mode&0o777 == uint32(mode.Perm()) {
		return nil
	}
	// An O_PATH descriptor has no fchmod.
	return unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", file), uint32(mode.Perm()))
}

// staleTimeout bounds the check whether a process listens on a socket.
const staleTimeout = time.Second

// removeStale removes a socket that no process listens on.
func removeStale(path string) error {
	if err := checkStale(path); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove the stale socket: %w", err)
	}
	return nil
}

// checkStale fails unless path is a socket that no process listens on.
func checkStale(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return fmt.Errorf("socket %q: %w", path, err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("socket %q: path exists and is not a socket (%v), and something else may "+
			"need it: choose another path, or remove it", path, info.Mode())
	}
	connection, err := net.DialTimeout("unix", path, staleTimeout)
	if err == nil {
		_ = connection.Close()
		return fmt.Errorf("socket %q: another process listens on it: \"ss -lxp\" shows which; stop it, or choose another path: %w",
			path, unix.EADDRINUSE)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("socket %q: check whether it is in use: %w", path, err)
	}
	return nil
}
