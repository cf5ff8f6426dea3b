//go:build verbs

package verbs

import "golang.org/x/sys/unix"

// awaitKernelCopies waits until copies that the kernel is making into user
// memory at this moment have ended. siw places data while preemption is
// disabled, and membarrier's global command returns when every core has been
// through a state in which it is not (synchronize_rcu). It costs some 10 ms,
// and is not there with isolated cores (nohz_full).
func awaitKernelCopies() {
	const membarrierGlobal = 1 // MEMBARRIER_CMD_GLOBAL
	_, _, _ = unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0)
}
