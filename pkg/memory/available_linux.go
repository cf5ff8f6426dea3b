// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/zc-relay/zc-relay/internal/size"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// checkedLength is the least length that CheckAvailable checks: every machine has room for less.
const checkedLength = 16 << 20

// CheckAvailable returns a NoMemory error if the machine does not have length bytes available, or a
// cgroup of this process limits its memory to less. The kernel does not fail such an allocation,
// but kills processes once the memory is used. What the limit of a cgroup leaves of other uses of
// memory is not checked.
func CheckAvailable(length uint64) error {
	if length < checkedLength {
		return nil
	}
	root := os.DirFS("/")
	return errors.Join(checkMachine(root, length), checkCgroups(root, length))
}

// CheckTotal returns a NoMemory error if the machine could not have length bytes even if nothing
// else used any, or a cgroup of this process limits its memory to less.
func CheckTotal(length uint64) error {
	root := os.DirFS("/")
	return errors.Join(checkTotal(root, length), checkCgroups(root, length))
}

// checkTotal takes /proc from root. It skips what it cannot read.
func checkTotal(root fs.FS, length uint64) error {
	if total, swap := meminfo(root, "MemTotal:"), meminfo(root, "SwapTotal:"); total > 0 &&
		total+swap < length {
		return status.Errorf(status.NoMemory, "%v is more than the %v of memory and swap that this "+
			"machine has", size.Bytes(length), size.FormatBytes(total+swap))
	}
	return nil
}

// meminfo returns a number of bytes of /proc/meminfo, 0 if it cannot be read.
func meminfo(root fs.FS, key string) uint64 {
	text, err := fs.ReadFile(root, "proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line) // the key, a number, "kB"
		if len(fields) > 1 && fields[0] == key {
			kilobytes, _ := strconv.ParseUint(fields[1], 10, 64)
			return kilobytes << 10
		}
	}
	return 0
}

// checkMachine takes /proc from root. It skips what it cannot read.
func checkMachine(root fs.FS, length uint64) error {
	available, swap := meminfo(root, "MemAvailable:"), meminfo(root, "SwapFree:")
	if available > 0 && available+swap < length {
		return status.Errorf(status.NoMemory,
			"%d bytes exceed the %d bytes that this machine has available (MemAvailable and SwapFree "+
				"of /proc/meminfo)", length, available+swap)
	}
	return nil
}

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
