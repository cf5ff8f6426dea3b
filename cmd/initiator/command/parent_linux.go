// SPDX-License-Identifier: Apache-2.0

package command

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// parentEnd returns a channel that is closed when the process that is the parent now has ended.
func parentEnd() (<-chan struct{}, error) {
	parent := os.Getppid()
	descriptor, err := unix.PidfdOpen(parent, 0)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return nil, fmt.Errorf("watch process %d: %w", parent, err)
	}
	ended := make(chan struct{})
	if err != nil || os.Getppid() != parent {
		close(ended) // it ended meanwhile
		return ended, nil
	}
	go func() {
		defer close(ended)
		defer unix.Close(descriptor)
		for {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(descriptor), Events: unix.POLLIN}}, -1)
			if n > 0 || (err != nil && !errors.Is(err, unix.EINTR)) {
				return
			}
		}
	}()
	return ended, nil
}
