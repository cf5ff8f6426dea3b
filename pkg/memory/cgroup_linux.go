package memory

import (
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// CheckCgroups returns a NoMemory error if a cgroup of this process limits its memory to less than
// length bytes. The kernel does not fail an allocation that exceeds such a limit, but kills the
// process. What the limit leaves of other uses of memory is not checked.
func CheckCgroups(length uint64) error { return checkCgroups(os.DirFS("/"), length) }

// checkCgroups takes /proc and /sys from root. It skips what it cannot read.
func checkCgroups(root fs.FS, length uint64) error {
	list, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(list)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		hierarchy, file := "", ""
		switch fields[1] {
		case "": // version 2
			hierarchy, file = "sys/fs/cgroup", "memory.max"
		case "memory":
			hierarchy, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		default:
			continue
		}
		for group := path.Join("/", fields[2]); ; group = path.Dir(group) {
			text, err := fs.ReadFile(root, path.Join(hierarchy, group, file))
			if err == nil {
				limit, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
				if err == nil && limit < length { // "max" is no number
					return status.Errorf(status.NoMemory,
						"%d bytes exceed the memory limit of cgroup %s, %s = %d", length, group,
						file, limit)
				}
			}
			if group == "/" {
				break
			}
		}
	}
	return nil
}
