// SPDX-License-Identifier: Apache-2.0

package program

import (
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// dieOf ends the process at once, as the signal does by default.
func dieOf(s syscall.Signal) {
	signal.Reset(s)
	runtime.LockOSThread() // which handles the signal before Tgkill returns
	_ = unix.Tgkill(os.Getpid(), unix.Gettid(), s)
	os.Exit(ExitSignal + int(s)) // the process was started to ignore the signal
}
