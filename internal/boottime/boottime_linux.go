// Package boottime reads the monotonic clock that goes on while the machine sleeps.
package boottime

import (
	"time"

	"golang.org/x/sys/unix"
)

// Now returns the time since the machine has started, CLOCK_BOOTTIME.
func Now() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // fails only for clocks that do not exist
	return time.Duration(t.Nano())
}
