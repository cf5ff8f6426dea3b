// SPDX-License-Identifier: Apache-2.0

package affinity

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Read the set before any thread can have been pinned: afterwards the result would depend on the
// calling thread.
var allowedAtStart, errAllowed = readAllowed()

func readAllowed() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("get the CPUs this process may run on: %w", err)
	}
	var cpus []int
	for cpu := range maxCPU + 1 {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}

// AnyCPU, in place of a CPU number, leaves a thread unpinned.
const AnyCPU = -1

// Allowed returns the CPUs that the process could run on when it started, in ascending order
// (sched_getaffinity, which respects taskset, cpusets, and systemd's CPUAffinity).
func Allowed() ([]int, error) {
	return slices.Clone(allowedAtStart), errAllowed
}

// pollingThreads is how many threads that poll a program starts by default, if the machine is large
// enough.
const pollingThreads = 2

// PollingThreads returns how many threads that poll a program starts if nobody says otherwise. With
// fewer than four CPUs that is one, because those of several programs would take the CPUs from
// threads that have work.
func PollingThreads() (int, error) {
	if len(allowedAtStart) < 2*pollingThreads {
		return 1, errAllowed
	}
	return pollingThreads, nil
}

// Check returns an InvalidValue error that names the first of cpus that the process may not run on.
func Check(cpus []int) error {
	allowed, err := Allowed()
	if err != nil {
		return err
	}
	for _, cpu := range cpus {
		if !slices.Contains(allowed, cpu) {
			return status.Errorf(status.InvalidValue, "CPU %d is not in the allowed set %s", cpu,
				FormatList(allowed))
		}
	}
	return nil
}

// Pin pins the calling thread to one CPU. The goroutine must have called runtime.LockOSThread, and
// should end without unlocking: the thread keeps its affinity.
func Pin(cpu int) error {
	if err := Check([]int{cpu}); err != nil {
		return fmt.Errorf("pin thread: %w", err)
	}
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("pin thread to CPU %d: %w", cpu, err)
	}
	return nil
}

// Describe describes the placement of threads, for logs. An empty list, or negative numbers in it,
// stand for unpinned threads.
func Describe(cpus []int) string {
	pinned := slices.DeleteFunc(slices.Clone(cpus), func(cpu int) bool { return cpu < 0 })
	if len(pinned) == 0 {
		return "not pinned, allowed on CPUs " + FormatList(allowedAtStart)
	}
	return "pinned to CPUs " + FormatList(pinned)
}
