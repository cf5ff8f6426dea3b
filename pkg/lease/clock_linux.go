package lease

import "golang.org/x/sys/unix"

// Boottime is the Clock of this machine, CLOCK_BOOTTIME.
func Boottime() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // fails only for clocks that do not exist
	return t.Nano()
}
