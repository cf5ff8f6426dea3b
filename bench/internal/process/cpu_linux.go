// SPDX-License-Identifier: Apache-2.0

package process

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// CPUTime returns the CPU time of all threads of a process since its start, as the scheduler counts
// it, in nanoseconds. /proc/PID/stat counts ticks of 10 ms, which can miss a nearly idle process
// entirely.
func CPUTime(id int) (time.Duration, error) {
	tasks := fmt.Sprintf("/proc/%d/task", id)
	threads, err := os.ReadDir(tasks)
	if err != nil {
		return 0, err
	}
	total := time.Duration(0)
	for _, thread := range threads {
		content, err := os.ReadFile(tasks + "/" + thread.Name() + "/schedstat")
		if os.IsNotExist(err) {
			continue // it has ended
		}
		if err != nil {
			return 0, err
		}
		first, _, _ := strings.Cut(string(content), " ")
		ns, err := strconv.ParseInt(first, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s/%s/schedstat: %w", tasks, thread.Name(), err)
		}
		total += time.Duration(ns)
	}
	return total, nil
}
