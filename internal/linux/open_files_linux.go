// SPDX-License-Identifier: Apache-2.0

package linux

import "golang.org/x/sys/unix"

// OpenFileLimit returns how many descriptors this process may have, at most 1 Gi. Providers derive
// the defaults of their limits from it, so that nobody who connects can take every descriptor.
func OpenFileLimit() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 1024 // the traditional limit
	}
	return int(min(limit.Cur, 1<<30))
}
