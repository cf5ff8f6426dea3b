package doctor

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/zc-relay/zc-relay/internal/size"
)

// Bounds between good and worrying.
const (
	// minMemlock is enough for the message memory of a few sessions.
	minMemlock     = 64 << 20
	minDescriptors = 16384
	oldestKernel   = 5 // the major version that Debian 11 and DOCA's images have
)

func (m *machine) kernel() []Finding {
	const check = "kernel"
	release := m.proc("sys/kernel/osrelease")
	major, err := strconv.Atoi(strings.SplitN(release, ".", 2)[0])
	switch {
	case err != nil:
		return []Finding{warn(check, fmt.Sprintf("the kernel's version %q cannot be read", release), "see that /proc is mounted")}
	case major < oldestKernel:
		return []Finding{fail(check, "Linux "+release, fmt.Sprintf("update to Linux %d or later", oldestKernel))}
	}
	return []Finding{ok(check, "Linux "+release)}
}

func (m *machine) memlock() []Finding {
	const check = "memlock"
	limit, known := m.limit("Max locked memory")
	switch {
	case !known:
		return []Finding{warn(check, "the limit of locked memory cannot be read", "see that /proc is mounted")}
	case limit == unlimited:
		return []Finding{ok(check, "locked memory is not limited")}
	}
	detail := fmt.Sprintf("RLIMIT_MEMLOCK is %v", size.Bytes(limit))
	const remedy = "set LimitMEMLOCK=infinity in the unit, or \"ulimit -l unlimited\""
	switch {
	case limit >= minMemlock:
		return []Finding{ok(check, detail)}
	case m.Verbs:
		return []Finding{fail(check, detail+": memory that is registered with verbs is locked", remedy)}
	}
	return []Finding{warn(check, detail+": enough for iwarp, which locks nothing, not for verbs", remedy)}
}

func (m *machine) descriptors() []Finding {
	const check = "descriptors"
	limit, known := m.limit("Max open files")
	switch {
	case !known:
		return []Finding{warn(check, "the limit of open files cannot be read", "see that /proc is mounted")}
	case limit < minDescriptors:
		return []Finding{warn(check, fmt.Sprintf("RLIMIT_NOFILE is %d: each queue takes about a dozen", limit), fmt.Sprintf("set LimitNOFILE=%d in the unit, or \"ulimit -n\"", 4*minDescriptors))}
	}
	return []Finding{ok(check, fmt.Sprintf("RLIMIT_NOFILE is %d", limit))}
}

func (m *machine) hugePages() []Finding {
	const check = "hugepages"
	total, _ := strconv.Atoi(m.field("meminfo", "HugePages_Total"))
	free, _ := strconv.Atoi(m.field("meminfo", "HugePages_Free"))
	transparent := m.sys("kernel/mm/transparent_hugepage/enabled")
	if strings.Contains(transparent, "[never]") && total == 0 {
		return []Finding{warn(check, "no huge pages are reserved and transparent ones are off: large volumes in memory cost more page table walks",
			"echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")}
	}
	if total > 0 && free == 0 {
		return []Finding{warn(check, fmt.Sprintf("all %d reserved huge pages are taken: clients that export such memory cannot start", total), "raise vm.nr_hugepages")}
	}
	return []Finding{ok(check, fmt.Sprintf("%d of %d reserved pages are free (%s each), transparent: %s", free, total,
		orUnknown(m.field("meminfo", "Hugepagesize")), orUnknown(transparent)))}
}

func orUnknown(text string) string {
	if text == "" {
		return "unknown"
	}
	return text
}
