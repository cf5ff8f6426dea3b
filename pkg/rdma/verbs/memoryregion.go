//go:build verbs

package verbs

import (
	"sync"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs/internal/ibv"
)

// memoryRegion implements rdma.MemoryRegion. Its addresses are those of this
// process: not every driver can register memory under others.
type memoryRegion struct {
	domain    *protectionDomain
	mr        *ibv.MemoryRegion
	localKey  uint32
	base      uint64
	length    uint64
	access    memory.Access
	untrusted bool // the CPU must not touch it directly

	deregister sync.Once
	failure    error
}

func (r *memoryRegion) LocalKey() uint32  { return r.localKey }
func (r *memoryRegion) RemoteKey() uint32 { return r.mr.RemoteKey() }
func (r *memoryRegion) Base() uint64      { return r.base }
func (r *memoryRegion) Len() uint64       { return r.length }

// Deregister implements rdma.MemoryRegion. The device waits for what touches
// the memory and fails later accesses; it needs no thread of this process to
// do so. siw does not wait, so this does in its place.
func (r *memoryRegion) Deregister() error {
	r.deregister.Do(func() {
		r.domain.regions.remove(r)
		r.failure = r.mr.Deregister()
		if r.domain.device.limits.SoftIWARP {
			awaitKernelCopies()
		}
		r.domain.release()
	})
	return r.failure
}

// contains tells whether a range lies within the memory. It cannot wrap.
func (r *memoryRegion) contains(address, length uint64) bool {
	offset := address - r.base
	return address >= r.base && offset <= r.length && length <= r.length-offset
}
