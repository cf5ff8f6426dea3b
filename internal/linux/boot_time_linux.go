// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"time"

	"golang.org/x/sys/unix"
)

// BootTime returns the time since the machine has started, by the monotonic clock that goes on
// while the machine sleeps, CLOCK_BOOTTIME.
func BootTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // fails only for clocks that do not exist
	return time.Duration(t.Nano())
}
