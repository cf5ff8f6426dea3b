package emulated

import (
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// On the server, ringMemory allocates a ring; on the client, it maps the ring that the server has
// sent. The ring counts against the connection's limit.
func (c *connection) ringMemory(layout ringLayout, received *descriptors) (*memory.Region, error) {
	err := c.remote.reserve(layout.total)
	if err != nil {
		c.cleanup.wait(cleanupTimeout) // pending cleanup may free rings
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

// importRing maps a ring that the server has allocated. It takes ownership of descriptor, which is
// -1 if the server sent none. The file must come from memfd_create, which its seals prove, and
// consist of ordinary pages: a page punched out of such a file reads as zeroes, so access never
// faults.
func importRing(descriptor int, layout ringLayout) (*memory.Region, error) {
	if descriptor < 0 {
		return nil, status.Errorf(status.InvalidValue, "server sent no ring memory")
	}
	var filesystem unix.Statfs_t
	if err := unix.Fstatfs(descriptor, &filesystem); err != nil {
		closeDescriptor(descriptor)
		return nil, status.Errorf(status.OperatingSystem, "import ring: statfs: %w", err)
	}
	if filesystem.Type != unix.TMPFS_MAGIC {
		closeDescriptor(descriptor)
		return nil, status.Errorf(status.InvalidValue,
			"import ring: file system type %#x is not that of a memfd (tmpfs)", filesystem.Type)
	}
	region, err := memory.Import(descriptor, uint64(layout.total), uint64(layout.total), ringAccess)
	if err != nil {
		closeDescriptor(descriptor)
		return nil, fmt.Errorf("import ring: %w", err)
	}
	// Prefault the mapping. If this fails, page faults only cost time later.
	_ = unix.Madvise(region.Bytes(), unix.MADV_POPULATE_WRITE)
	return region, nil
}

// readGracePeriod is how long the server keeps the ring of a client's consumer after the connection
// has ended: the client may be copying a message, which must not turn into zeroes.
const readGracePeriod = 5 * time.Second

// maxLingeringBytes bounds the ring memory that this process keeps for clients of ended
// connections. Beyond it, rings are freed at once. Only a mass of short-lived clients reaches it.
const maxLingeringBytes = 64 << 20

var lingeringBytes atomic.Int64

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

// freeRingLater frees a ring after readGracePeriod, or at once if too much memory lingers already.
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
