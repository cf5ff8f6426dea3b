// SPDX-License-Identifier: Apache-2.0

package logging

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// readerPatience is how long a line waits for the reader of the log.
const readerPatience = time.Second

// writtenAtOnce is how much a pipe or a socket takes without blocking if it is writable: PIPE_BUF.
const writtenAtOnce = 4096

// unblocked writes to a pipe or a socket whose reader may stop to read, as journald does when it is
// stopped. It waits once for such a reader, and then drops what does not fit, so that the log holds
// nobody up. One goroutine at a time may use it.
type unblocked struct {
	file     *os.File
	patience time.Duration
	isLate   bool // the reader has not read in time
}

// Write reports success for what it drops: zap would report a failure to the same reader.
func (u *unblocked) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0 && u.awaitRoom(); {
		n, err := u.file.Write(rest[:min(len(rest), writtenAtOnce)])
		if err != nil {
			return len(p) - len(rest) + n, err
		}
		rest = rest[n:]
	}
	return len(p), nil
}

// awaitRoom reports whether the file can be written without blocking.
func (u *unblocked) awaitRoom() bool {
	patience := u.patience
	if u.isLate {
		patience = 0
	}
	for deadline := time.Now().Add(patience); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(u.file.Fd()), Events: unix.POLLOUT}},
			int(max(time.Until(deadline), 0).Milliseconds()))
		if err != unix.EINTR { //nolint:errorlint // the system's error itself
			u.isLate = n == 0 && err == nil
			return !u.isLate
		}
	}
}
