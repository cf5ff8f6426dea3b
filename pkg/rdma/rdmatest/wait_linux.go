package rdmatest

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// readable waits until the descriptor is readable.
func readable(b *bench, descriptor int, timeout time.Duration) bool {
	fds := []unix.PollFd{{Fd: int32(descriptor), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, int(timeout.Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			b.Errorf("poll: %v", err)
		}
		return n > 0
	}
}
