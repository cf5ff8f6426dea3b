package emulated

import (
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// ringMemory allocates a ring on the server and maps what the server has sent
// on the client. Either way it counts against the limit.
func (c *connection) ringMemory(layout ringLayout, received *descriptors) (*memory.Region, error) {
	err := c.remote.reserve(layout.total)
	if err != nil {
		c.cleanup.wait(cleanupTimeout) // rings may be about to be given back
		err = c.remote.reserve(layout.total)
	}
	if err != nil {
		return nil, err
	}
	var region *memory.Region
	if c.role == serverRole {
		region, err = allocateRing(layout)
	} else {
		descriptor, _ := received.next()
		region, err = importRing(descriptor, layout)
	}
	if err != nil {
		c.remote.unreserve(layout.total)
	}
	return region, err
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

// importRing maps the memory of a ring that the server has made; on success
// the region owns descriptor. The file must come from memfd_create, which
// being sealed proves, and consist of ordinary pages: a page that is punched
// out of such a file reads as zeroes, so access never faults.
func importRing(descriptor int, layout ringLayout) (*memory.Region, error) {
	if descriptor < 0 {
		return nil, status.Errorf(status.InvalidValue, "the server sent no ring memory")
	}
	var filesystem unix.Statfs_t
	if err := unix.Fstatfs(descriptor, &filesystem); err != nil {
		closeDescriptor(descriptor)
		return nil, status.Errorf(status.OperatingSystem, "import ring: statfs: %w", err)
	}
	if filesystem.Type != unix.TMPFS_MAGIC {
		closeDescriptor(descriptor)
		return nil, status.Errorf(status.InvalidValue, "import ring: file system %#x is not that of a memfd", filesystem.Type)
	}
	region, err := memory.Import(descriptor, uint64(layout.total), uint64(layout.total), ringAccess)
	if err != nil {
		closeDescriptor(descriptor)
		return nil, fmt.Errorf("import ring: %w", err)
	}
	// Saves page faults later; they do no harm otherwise.
	_ = unix.Madvise(region.Bytes(), unix.MADV_POPULATE_WRITE)
	return region, nil
}

// lastReading is how long the server leaves the ring of a client's consumer
// alone after the end of the connection: the client may be about to copy a
// message, which must not turn into zeroes under its hands.
const readGracePeriod = 5 * time.Second

// maxLeftBytes bounds the ring memory that this process leaves to clients of
// ended connections. Beyond it, rings are freed without delay: only clients
// that come and go in masses get there.
const maxLingeringBytes = 64 << 20

var lingeringBytes atomic.Int64

// freeRing closes a ring. On the server, which pays for the memory, its pages
// go first: the client can keep the file, but what it touches from then on is
// its own expense.
func freeRing(role role, region *memory.Region) {
	if role == serverRole {
		const hugePage = 512 << 20 // the largest there is, on arm64
		length := roundUp(int(region.Len()), hugePage)
		// Cannot fail on a file from memory.Alloc.
		_ = unix.Fallocate(region.Descriptor(), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, int64(length))
	}
	_ = region.Close() // unmapping our own mapping does not fail
}

// freeRingLater frees a ring after lastReading, or at once if too much is
// left already.
func freeRingLater(region *memory.Region) {
	size := int64(region.Len())
	if lingeringBytes.Add(size) > maxLingeringBytes {
		lingeringBytes.Add(-size)
		freeRing(serverRole, region)
		return
	}
	time.AfterFunc(readGracePeriod, func() {
		freeRing(serverRole, region)
		lingeringBytes.Add(-size)
	})
}
