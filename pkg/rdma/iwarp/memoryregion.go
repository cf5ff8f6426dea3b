package iwarp

import (
	"sync"

	"github.com/zc-relay/zc-relay/pkg/memory"
)

// memoryRegion is registered memory. Its tagged offsets are zero-based: they
// tell peers nothing about this process's addresses.
type memoryRegion struct {
	uses      useCount
	stag      uint32
	access    memory.Access
	untrusted bool
	bytes     []byte // must not be touched directly if untrusted
	region    *memory.Region
	domain    *protectionDomain

	deregister sync.Once
}

func (r *memoryRegion) LocalKey() uint32  { return r.stag }
func (r *memoryRegion) RemoteKey() uint32 { return r.stag }
func (r *memoryRegion) Base() uint64      { return 0 }
func (r *memoryRegion) Len() uint64       { return uint64(len(r.bytes)) }

// Deregister implements rdma.MemoryRegion. The first call waits for the
// system calls and copies that touch the memory right now; messages that are
// only partly sent or received do not hold it up, they fail.
func (r *memoryRegion) Deregister() error {
	r.deregister.Do(func() {
		r.domain.device.table.remove(r)
		r.uses.revoke()
		r.domain.uses.release()
	})
	return nil
}

// contains tells whether a range lies within the memory. It cannot wrap.
func (r *memoryRegion) contains(offset, length uint64) bool {
	size := uint64(len(r.bytes))
	return offset <= size && length <= size-offset
}

// copyIn and copyOut move bytes while the caller holds a use. False means
// that the memory's owner took it away.
func (r *memoryRegion) copyIn(offset uint64, source []byte) bool {
	if r.untrusted {
		return r.region.CopyIn(offset, source) == nil
	}
	copy(r.bytes[offset:], source)
	return true
}

func (r *memoryRegion) copyOut(target []byte, offset uint64) bool {
	if r.untrusted {
		return r.region.CopyOut(target, offset) == nil
	}
	copy(target, r.bytes[offset:])
	return true
}
