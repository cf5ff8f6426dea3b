// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/zc-relay/zc-relay/internal/affinity"
	"github.com/zc-relay/zc-relay/internal/size"
)

// cores checks the cores of the workers.
func (m *machine) cores() []Finding {
	const check = "cores"
	allowed := m.cpuList(m.field("self/status", "Cpus_allowed_list"))
	if len(allowed) == 0 {
		return []Finding{warn(check, "the cores available to the process cannot be read",
			"check that /proc is mounted")}
	}
	if len(m.CPUs) == 0 {
		return []Finding{m.sharedCores(allowed)}
	}
	isolated := append(m.cpuList(m.sys("devices/system/cpu/isolated")),
		m.cpuList(m.sys("devices/system/cpu/nohz_full"))...)
	var findings []Finding
	var shared []int
	for _, cpu := range m.CPUs {
		if !slices.Contains(allowed, cpu) {
			findings = append(findings,
				fail(check, fmt.Sprintf("core %d is not available to the process, only %s are", cpu,
					affinity.FormatList(allowed)),
					fmt.Sprintf("choose other cores in %s, or extend AllowedCPUs= and CPUAffinity= of the unit",
						m.cpuSetting())))
		} else if !slices.Contains(isolated, cpu) {
			shared = append(shared, cpu)
		}
	}
	if len(shared) > 0 {
		findings = append(findings, m.notIsolated(shared))
	}
	if len(findings) == 0 {
		findings = append(findings, ok(check, "workers on cores "+affinity.FormatList(m.CPUs)+
			", which are isolated"))
	}
	return findings
}

// cpuSetting names what pins workers to cores.
func (m *machine) cpuSetting() string {
	if m.FromFile && len(m.Channels) > 0 {
		return "workers.cpus, or cpus of the channel"
	}
	return m.setting("workers.cpus", "--cpu")
}

func (m *machine) notIsolated(cpus []int) Finding {
	detail := fmt.Sprintf("cores %s are shared with the rest of the system",
		affinity.FormatList(cpus))
	if m.Busy {
		return warn("cores",
			detail+": busy polling starves everything else there, which in turn delays the workers",
			fmt.Sprintf("boot with isolcpus= and nohz_full= for these cores, or set %s to adaptive",
				m.setting("workers.poll", "--poll")))
	}
	return ok("cores", detail+", which is fine with adaptive polling")
}

// sharedCores checks workers that the scheduler places.
func (m *machine) sharedCores(allowed []int) Finding {
	detail := fmt.Sprintf("%d unpinned workers on cores %s", m.Workers,
		affinity.FormatList(allowed))
	poll := m.setting("workers.poll", "--poll")
	fewer := "use fewer workers (workers.count)"
	switch {
	case m.Busy && len(allowed) <= m.Workers:
		return fail("cores", detail+": busy polling would leave no core for anything else",
			fmt.Sprintf("set %s to adaptive, or %s", poll, fewer))
	case m.Busy:
		return warn("cores", detail+": busy polling needs dedicated cores",
			fmt.Sprintf("choose cores in %s, or set %s to adaptive", m.cpuSetting(), poll))
	case len(allowed) < m.Workers:
		return warn("cores", detail+": workers share a core", fewer)
	}
	return ok("cores", detail)
}

// cpuQuota checks the CPU limit of the cgroups. A worker that has used up its quota stops for up to
// 100 ms at a time.
func (m *machine) cpuQuota() []Finding {
	const check = "cpu-quota"
	workers := max(len(m.CPUs), m.Workers)
	group := m.cgroup()
	for path := group; ; path = filepath.Dir(path) {
		text := m.sys("fs/cgroup", path, "cpu.max")
		quota, period, found := strings.Cut(text, " ")
		limit, err := strconv.ParseFloat(quota, 64)
		length, errPeriod := strconv.ParseFloat(period, 64)
		if found && err == nil && errPeriod == nil && length > 0 {
			cores := limit / length
			detail := fmt.Sprintf("cgroup %s may use %.1f cores, for %d workers", path, cores,
				workers)
			const remedy = "raise CPUQuota= of the unit, or the CPU limit of the container, to one core per worker and one more"
			switch {
			case m.Busy && cores < float64(workers):
				return []Finding{fail(check, detail+": the kernel would throttle them all the time",
					remedy)}
			case cores < float64(workers+1):
				return []Finding{warn(check,
					detail+": under load the kernel throttles them, for up to a period at a time",
					remedy)}
			}
			return []Finding{ok(check, detail)}
		}
		if path == "/" || path == "." {
			return []Finding{ok(check, "cgroups do not limit CPU time")}
		}
	}
}

// cgroup returns the process's cgroup in the unified hierarchy.
func (m *machine) cgroup() string {
	for line := range strings.Lines(m.proc("self/cgroup")) {
		if path, found := strings.CutPrefix(strings.TrimSpace(line), "0::"); found {
			return filepath.Clean("/" + path)
		}
	}
	return "/"
}

func (m *machine) frequency() []Finding {
	const check = "cpu-frequency"
	governor := m.sys("devices/system/cpu/cpu0/cpufreq/scaling_governor")
	switch governor {
	case "":
		return []Finding{ok(check, "the system does not scale the frequency")}
	case "performance":
		return []Finding{ok(check, "governor performance")}
	}
	return []Finding{warn(check, "governor "+governor+": cores are slow at first when they wake up",
		"cpupower frequency-set -g performance")}
}

func (m *machine) clock() []Finding {
	const check = "clock"
	source := m.sys("devices/system/clocksource/clocksource0/current_clocksource")
	switch source {
	case "tsc", "arch_sys_counter", "kvm-clock":
		return []Finding{ok(check, "clock source "+source)}
	case "":
		return []Finding{warn(check, "the clock source cannot be read",
			"check that /sys is mounted")}
	}
	return []Finding{warn(check, "clock source "+source+": reading the clock takes a system call",
		"boot with clocksource=tsc if the machine's TSC is stable")}
}

// Thresholds for warnings.
const (
	// minMemlock is enough for the message memory of a few sessions, in bytes.
	minMemlock   = 64 << 20
	oldestKernel = 5 // major version in Debian 11 and in DOCA's images
)

func (m *machine) kernel() []Finding {
	const check = "kernel"
	release := m.proc("sys/kernel/osrelease")
	major, err := strconv.Atoi(strings.SplitN(release, ".", 2)[0])
	switch {
	case err != nil:
		return []Finding{warn(check, fmt.Sprintf("the kernel version %q cannot be parsed", release),
			"check that /proc is mounted")}
	case major < oldestKernel:
		return []Finding{fail(check, "Linux "+release, fmt.Sprintf("update to Linux %d or later",
			oldestKernel))}
	}
	return []Finding{ok(check, "Linux "+release)}
}

func (m *machine) memlock() []Finding {
	const check = "memlock"
	limit, known := m.limit("Max locked memory", softLimit)
	switch {
	case !known:
		return []Finding{warn(check, "the limit on locked memory cannot be read",
			"check that /proc is mounted")}
	case limit == unlimited:
		return []Finding{ok(check, "locked memory is unlimited")}
	}
	detail := fmt.Sprintf("RLIMIT_MEMLOCK is %v", size.Bytes(limit))
	const remedy = "set LimitMEMLOCK=infinity in the unit, or \"ulimit -l unlimited\""
	if limit >= minMemlock {
		return []Finding{ok(check, detail)}
	}
	if provider := m.cardProvider(); provider != "" {
		return []Finding{fail(check,
			fmt.Sprintf("%s: %s locks the memory that it registers", detail, provider), remedy)}
	}
	return []Finding{warn(check, detail+": enough for providers that lock nothing, such as iwarp, "+
		"but not for verbs and doca", remedy)}
}

func (m *machine) descriptors() []Finding {
	const check = "descriptors"
	limit, known := m.limit("Max open files", hardLimit) // the relay raises its soft limit
	detail := fmt.Sprintf("RLIMIT_NOFILE can be raised to %d; the limits of sessions and queues allow %d descriptors",
		limit, m.Descriptors)
	switch {
	case !known:
		return []Finding{warn(check, "the limit on open files cannot be read",
			"check that /proc is mounted")}
	case limit < uint64(m.Descriptors):
		return []Finding{warn(check, detail+", so some sessions would be rejected",
			fmt.Sprintf("systemctl edit %s, with [Service] LimitNOFILE=%d, or lower the limits in the configuration (--config)",
				m.Unit, m.LimitNOFILE))}
	case limit == unlimited:
		detail = "RLIMIT_NOFILE is unlimited"
	}
	return []Finding{ok(check, detail)}
}

func (m *machine) hugePages() []Finding {
	const check = "hugepages"
	total, _ := strconv.Atoi(m.field("meminfo", "HugePages_Total"))
	free, _ := strconv.Atoi(m.field("meminfo", "HugePages_Free"))
	transparent := m.sys("kernel/mm/transparent_hugepage/enabled")
	if strings.Contains(transparent, "[never]") && total == 0 {
		return []Finding{warn(check,
			"no huge pages are reserved and transparent huge pages are off: large volumes in memory need more page table walks",
			"echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")}
	}
	if total > 0 && free == 0 {
		return []Finding{warn(check,
			fmt.Sprintf("all %d reserved huge pages are in use: clients that export huge pages cannot start",
				total), "raise vm.nr_hugepages")}
	}
	return []Finding{ok(check,
		fmt.Sprintf("%d of %d reserved pages are free (%s each), transparent: %s", free, total,
			orUnknown(m.field("meminfo", "Hugepagesize")), orUnknown(transparent)))}
}

func orUnknown(text string) string {
	if text == "" {
		return "unknown"
	}
	return text
}
