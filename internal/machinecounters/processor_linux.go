// SPDX-License-Identifier: Apache-2.0

package machinecounters

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/affinity"
)

// processUsage returns what this process has used.
func processUsage() map[string]uint64 {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return nil
	}
	return map[string]uint64{
		"user_time_ns":                 uint64(usage.Utime.Nano()),
		"system_time_ns":               uint64(usage.Stime.Nano()),
		"voluntary_context_switches":   uint64(usage.Nvcsw),
		"involuntary_context_switches": uint64(usage.Nivcsw),
		"minor_page_faults":            uint64(usage.Minflt),
		"major_page_faults":            uint64(usage.Majflt),
	}
}

// events are the counters of a processor that are worth reporting, by their numbers in
// perf_event_open(2).
var events = []struct {
	name   string
	kind   uint32
	number uint64
}{
	{"cycles", unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_CPU_CYCLES},
	{"instructions", unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_INSTRUCTIONS},
	{"cache_references", unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_CACHE_REFERENCES},
	{"cache_misses", unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_CACHE_MISSES},
	{"branch_misses", unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_BRANCH_MISSES},
	{"context_switches", unix.PERF_TYPE_SOFTWARE, unix.PERF_COUNT_SW_CONTEXT_SWITCHES},
	{"processor_migrations", unix.PERF_TYPE_SOFTWARE, unix.PERF_COUNT_SW_CPU_MIGRATIONS},
}

// processorEvent counts one event on one processor.
type processorEvent struct {
	name       string
	descriptor int
}

// openProcessorEvents begins to count on the processors that this process may use. An event that
// one of them does not count is left out. Without the right to count what others do, there are
// none.
func openProcessorEvents() []processorEvent {
	cpus, err := affinity.Allowed()
	if err != nil {
		return nil
	}
	var all []processorEvent
	for _, e := range events {
		opened := len(all)
		for _, cpu := range cpus {
			attributes := unix.PerfEventAttr{Type: e.kind, Config: e.number,
				Size: uint32(unix.PERF_ATTR_SIZE_VER0)}
			fd, err := unix.PerfEventOpen(&attributes, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
			if err != nil {
				endEvents(all[opened:])
				all = all[:opened]
				break
			}
			all = append(all, processorEvent{name: e.name, descriptor: fd})
		}
	}
	return all
}

// endEvents returns the sums of all processors, and ends the counting.
func endEvents(all []processorEvent) map[string]uint64 {
	var sums map[string]uint64
	for _, e := range all {
		var value [8]byte
		if n, err := unix.Read(e.descriptor, value[:]); err == nil && n == len(value) {
			if sums == nil {
				sums = make(map[string]uint64)
			}
			sums[e.name] += binary.NativeEndian.Uint64(value[:])
		}
		_ = unix.Close(e.descriptor) // only read
	}
	return sums
}
