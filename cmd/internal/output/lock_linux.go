// SPDX-License-Identifier: Apache-2.0

package output

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Lock keeps other callers of Lock out of a file until it is closed or the process ends.
func Lock(file *os.File) error {
	err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("%q is in use by another transfer", file.Name())
	}
	if err != nil {
		return fmt.Errorf("lock %q: %w", file.Name(), err)
	}
	return nil
}
