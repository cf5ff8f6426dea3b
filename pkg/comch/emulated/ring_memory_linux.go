// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// ringAccess is the access that both sides need to a ring's memory.
const ringAccess = memory.PCIRead | memory.PCIWrite

// allocateRing allocates the memory of a ring and touches all of it.
func allocateRing(layout ringLayout) (*memory.Region, error) {
	region, err := memory.Alloc("zc-relay-comch-ring", uint64(layout.total))
	if err != nil {
		return nil, err
	}
	if err := region.Prefault(); err != nil {
		_ = region.Close()
		return nil, err
	}
	return region, nil
}

// importRing maps a ring that the server has allocated. Unless it fails, it takes ownership of
// descriptor, which is -1 if the server sent none. The file must come from memfd_create, which its
// seals prove, and consist of ordinary pages: a page punched out of such a file reads as zeroes, so
// access never faults. The seals come first, to reject files of file systems that may never reply.
func importRing(descriptor int, layout ringLayout) (*memory.Region, error) {
	if descriptor < 0 {
		return nil, status.Errorf(status.InvalidValue, "server sent no ring memory")
	}
	if _, err := unix.FcntlInt(uintptr(descriptor), unix.F_GET_SEALS, 0); err != nil {
		return nil, status.Errorf(status.InvalidValue,
			"import ring: memory is not from memfd_create: %w", err)
	}
	var filesystem unix.Statfs_t
	if err := unix.Fstatfs(descriptor, &filesystem); err != nil {
		return nil, status.Errorf(status.OperatingSystem, "import ring: statfs: %w", err)
	}
	if filesystem.Type != unix.TMPFS_MAGIC {
		return nil, status.Errorf(status.InvalidValue,
			"import ring: file system type %#x is not that of a memfd (tmpfs)", filesystem.Type)
	}
	region, err := memory.Import(descriptor, 0, uint64(layout.total), uint64(layout.total),
		ringAccess)
	if err != nil {
		return nil, fmt.Errorf("import ring: %w", err)
	}
	// Prefault the mapping. If this fails, page faults only cost time later.
	_ = unix.Madvise(region.Bytes(), unix.MADV_POPULATE_WRITE)
	return region, nil
}

// freeRing closes a ring. The server, which allocated the memory, frees the pages first: the client
// can keep the file, but pages that it touches afterwards are charged to the client. The hole
// covers whole pages, because a part of a page would only be cleared.
func freeRing(role role, region *memory.Region) {
	if role == serverRole {
		const hugePage = 512 << 20 // the largest page size, on arm64
		length := roundUp(int(region.Len()), hugePage)
		// Cannot fail on a file from memory.Alloc.
		_ = unix.Fallocate(region.Descriptor(), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE,
			0, int64(length))
	}
	_ = region.Close() // unmapping our own mapping does not fail
}
