// SPDX-License-Identifier: Apache-2.0

package config

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// ownShortage compares the configuration with the limit of this process, which is that of a daemon
// started in the same way.
func ownShortage[C Configuration](c C) *Shortage {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return nil
	}
	return FindShortage(c, runtime.NumCPU(), limit.Max) // a daemon raises its soft limit
}
