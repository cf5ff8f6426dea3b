// SPDX-License-Identifier: Apache-2.0

// Package affinity pins threads to CPUs, and lists the CPUs that this process may run on.
package affinity

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxCPU is the highest CPU number that the kernel interface used here supports (CPU_SETSIZE is
// 1024).
const maxCPU = 1023

// ParseList parses a CPU list in the kernel's format, for instance "3" or "0-3,8". The result is in
// the order of the list. A duplicate CPU is an error, because two workers would share it.
func ParseList(text string) ([]int, error) {
	var cpus []int
	for item := range strings.SplitSeq(text, ",") {
		first, last, err := parseRange(strings.TrimSpace(item))
		if err != nil {
			return nil, fmt.Errorf("parse CPU list %q: %w", text, err)
		}
		for cpu := first; cpu <= last; cpu++ {
			if slices.Contains(cpus, cpu) {
				return nil, fmt.Errorf("parse CPU list %q: CPU %d is named twice", text, cpu)
			}
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}

func parseRange(item string) (first, last int, err error) {
	low, high, isRange := strings.Cut(item, "-")
	if first, err = parseCPU(low); err != nil {
		return 0, 0, err
	}
	if !isRange {
		return first, first, nil
	}
	if last, err = parseCPU(high); err != nil {
		return 0, 0, err
	}
	if last < first {
		return 0, 0, fmt.Errorf("range %q ends before it begins", item)
	}
	return first, last, nil
}

func parseCPU(text string) (int, error) {
	cpu, err := strconv.ParseUint(text, 10, 16)
	if err != nil || cpu > maxCPU {
		return 0, fmt.Errorf("%q is not a CPU number from 0 to %d (a list looks like \"0-3,8\")",
			text, maxCPU)
	}
	return int(cpu), nil
}

// FormatList formats CPUs for ParseList, sorted and with neighbours joined to ranges: "0-3,8".
func FormatList(cpus []int) string {
	sorted := slices.Compact(slices.Sorted(slices.Values(cpus)))
	var b strings.Builder
	for i := 0; i < len(sorted); {
		end := i
		for end+1 < len(sorted) && sorted[end+1] == sorted[end]+1 {
			end++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(sorted[i]))
		if end > i {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(sorted[end]))
		}
		i = end + 1
	}
	return b.String()
}
