// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// pin gives the calling goroutine a thread of its own, for good, and pins that to a core.
func pin(core int) error {
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(core)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("pin the thread to core %d: %w", core, err)
	}
	return nil
}
