// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/size"
)

// checkSpace warns if the file of a volume can still grow by more than its file system has left:
// writes would fail in the middle of the work. about is the file, nil if it is to be created with
// bytes of content. found is what is known about the volume.
func checkSpace(check, what, path string, about os.FileInfo, bytes uint64, found string) Finding {
	directory := path
	if about == nil {
		directory = filepath.Dir(path)
	} else if !about.Mode().IsRegular() {
		return ok(check, found)
	}
	var allocated uint64
	if about != nil {
		bytes = max(bytes, uint64(about.Size()))
		if stat, known := about.Sys().(*syscall.Stat_t); known {
			const statBlock = 512 // bytes, whatever the block size of the file system (stat(2))
			allocated = uint64(stat.Blocks) * statBlock
		}
	}
	var system unix.Statfs_t
	if unix.Statfs(directory, &system) != nil {
		return ok(check, found)
	}
	left := system.Bavail * uint64(system.Bsize)
	if allocated >= bytes || bytes-allocated <= left {
		return ok(check, found)
	}
	return warn(check, fmt.Sprintf("%s can grow by %s, and its file system has %s left: writes will "+
		"fail when it is full", what, size.FormatBytes(bytes-allocated), size.FormatBytes(left)),
		"free space (df -h "+directory+"), or allocate the file beforehand (fallocate)")
}
