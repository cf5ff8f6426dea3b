// SPDX-License-Identifier: Apache-2.0

package program

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// HideMemory keeps the memory of this process from its user's other processes, and from core dumps:
// it holds private keys or tokens. Only root can then attach a debugger or profiler.
//
// What /proc/self has still serves this process, except /proc/self/mem.
func HideMemory() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("hide the memory of this process (PR_SET_DUMPABLE): %w", err)
	}
	// Children have other memory: the hard limit stays for them.
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &limit); err != nil {
		return fmt.Errorf("read the limit of core dumps: %w", err)
	}
	limit.Cur = 0
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &limit); err != nil {
		return fmt.Errorf("set the limit of core dumps to 0: %w", err)
	}
	return nil
}
