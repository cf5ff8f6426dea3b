package emulated

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// maxDescriptors is how many descriptors a frame carries at most.
const maxDescriptors = 2

// descriptors are what came with one frame. Whoever handles the frame takes
// what it wants; the rest is closed.
type descriptors struct {
	list  [maxDescriptors]int
	count int
}

// take hands over the next descriptor.
func (d *descriptors) take() (int, bool) {
	if d.count == 0 {
		return -1, false
	}
	taken := d.list[0]
	copy(d.list[:], d.list[1:d.count])
	d.count--
	return taken, true
}

func (d *descriptors) add(descriptor int) {
	d.list[d.count] = descriptor
	d.count++
}

// closeAll closes what was not taken.
func (d *descriptors) closeAll() {
	for _, descriptor := range d.list[:d.count] {
		closeDescriptor(descriptor)
	}
	d.count = 0
}

// closeDescriptor ignores errors: a descriptor is gone after close whatever
// it returns, and nothing is ever written to one of these.
func closeDescriptor(descriptor int) {
	if descriptor >= 0 {
		_ = unix.Close(descriptor)
	}
}

// duplicate makes another descriptor of the same open file.
func duplicate(descriptor int) (int, error) {
	twin, err := unix.FcntlInt(uintptr(descriptor), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("duplicate descriptor %d: %w", descriptor, err)
	}
	return twin, nil
}

// ringAccess is what either side needs of a ring's memory.
const ringAccess = memory.PCIRead | memory.PCIWrite

// allocateRing makes the memory of a ring. All of it is allocated now.
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

// freePages gives the memory of a ring back to the system, also while others
// map it: to them it reads as zeroes. Whole pages are named, because a part of
// one would only be cleared.
func freePages(region *memory.Region) {
	const hugePage = 512 << 20 // the largest there is, on arm64
	length := roundUp(int(region.Len()), hugePage)
	// Cannot fail on a file from memory.Alloc.
	_ = unix.Fallocate(region.Descriptor(), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, int64(length))
}

// importRing maps the memory of a ring that the server has made; on success
// the region owns descriptor. The file must come from memfd_create, which
// being sealed proves, and consist of ordinary pages: a page that is punched
// out of such a file reads as zeroes, so access never faults.
func importRing(descriptor int, layout ringLayout) (*memory.Region, error) {
	var filesystem unix.Statfs_t
	if err := unix.Fstatfs(descriptor, &filesystem); err != nil {
		return nil, status.Errorf(status.OperatingSystem, "import ring: statfs: %w", err)
	}
	if filesystem.Type != unix.TMPFS_MAGIC {
		return nil, status.Errorf(status.InvalidValue, "import ring: file system %#x is not that of a memfd", filesystem.Type)
	}
	region, err := memory.Import(descriptor, uint64(layout.total), uint64(layout.total), ringAccess)
	if err != nil {
		return nil, fmt.Errorf("import ring: %w", err)
	}
	// Saves page faults later; they do no harm otherwise.
	_ = unix.Madvise(region.Bytes(), unix.MADV_POPULATE_WRITE)
	return region, nil
}

// exportedBytes is what a file that a peer exports counts against its limit:
// the largest of what was announced, its size and what it has allocated,
// which can be more than its size. Asking for seals first keeps out files of
// file systems whose answers may take for ever.
func exportedBytes(descriptor int, announced uint64) (uint64, error) {
	if _, err := unix.FcntlInt(uintptr(descriptor), unix.F_GET_SEALS, 0); err != nil {
		return 0, status.Errorf(status.InvalidValue, "exported memory does not come from memfd_create: %w", err)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(descriptor, &stat); err != nil {
		return 0, status.Errorf(status.OperatingSystem, "examine exported memory: %w", err)
	}
	const blockSize = 512 // of st_blocks, on every file system
	if stat.Size < 0 || stat.Blocks < 0 || stat.Blocks > (1<<62)/blockSize {
		return 0, status.Errorf(status.InvalidValue, "exported memory has an impossible size of %d bytes, %d blocks", stat.Size, stat.Blocks)
	}
	return max(announced, uint64(stat.Size), uint64(stat.Blocks)*blockSize), nil
}
