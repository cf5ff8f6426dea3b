package ops

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
)

// socketMode lets only the daemon's user, and root, connect.
const socketMode = 0o600

// listenUnix listens on a Unix socket. What a killed daemon has left at path
// is replaced.
func listenUnix(path string) (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, socket syscall.RawConn) error {
		// Before bind, so that there is no moment with another mode.
		var failed error
		err := socket.Control(func(fd uintptr) { failed = unix.Fchmod(int(fd), socketMode) })
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
		return nil, fmt.Errorf("socket %q: its directory does not exist (systemd makes it with RuntimeDirectory=): %w", path, err)
	}
	if err != nil {
		return nil, fmt.Errorf("socket %q: %w", path, err)
	}
	return listener, nil
}

// staleTimeout bounds the look whether somebody listens on a socket.
const staleTimeout = time.Second

// removeStale removes a socket on which nobody listens.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return fmt.Errorf("socket %q: %w", path, err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("socket %q: there is something else of that name: %v", path, info.Mode())
	}
	connection, err := net.DialTimeout("unix", path, staleTimeout)
	if err == nil {
		_ = connection.Close()
		return fmt.Errorf("socket %q: another process listens on it", path)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("socket %q: is it in use? %w", path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove the socket that nobody listens on: %w", err)
	}
	return nil
}
