//go:build verbs

package verbs

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs/internal/ibv"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// protectionDomain implements rdma.ProtectionDomain.
type protectionDomain struct {
	device  *device
	pd      *ibv.ProtectionDomain
	regions memoryTable
	uses    atomic.Int64   // memory regions and connections; closed if negative
	leaving sync.WaitGroup // connections that have been abandoned
}

// Register implements rdma.ProtectionDomain. Only mapped memory can be taken.
func (d *protectionDomain) Register(region *memory.Region, access memory.Access) (rdma.MemoryRegion, error) {
	if !region.Mapped() {
		return nil, status.Errorf(status.NotSupported,
			"register memory of %d bytes: it belongs to a device of its own and verbs needs memory that the CPU can address", region.Len())
	}
	if !access.Valid() {
		return nil, status.Errorf(status.InvalidValue, "register memory: access rights %#x are not defined", uint32(access))
	}
	if region.Len() > d.device.limits.RegionBytes {
		return nil, status.Errorf(status.TooBig, "register memory: %d bytes are more than the %d that %s takes at once",
			region.Len(), d.device.limits.RegionBytes, d.device.location.device)
	}
	if !d.use() {
		return nil, status.Errorf(status.BadState, "register memory: protection domain is closed")
	}
	mr, err := d.pd.Register(region.Bytes(), hardwareAccess(access))
	if err != nil {
		d.release()
		return nil, fmt.Errorf("register memory of %d bytes on %s: %w", region.Len(), d.device.location.device, err)
	}
	r := &memoryRegion{
		domain: d, mr: mr, localKey: mr.LocalKey(), base: mr.Address(), length: region.Len(),
		access: access, untrusted: region.Untrusted(),
	}
	d.regions.insert(r)
	return r, nil
}

// hardwareAccess translates rights. Whoever grants remote writes has to grant
// local ones to the device too (IBTA volume 1, 10.6.3.1).
func hardwareAccess(access memory.Access) (rights ibv.Access) {
	if access&(memory.LocalWrite|memory.RemoteWrite) != 0 {
		rights |= ibv.LocalWrite
	}
	if access.Has(memory.RemoteRead) {
		rights |= ibv.RemoteRead
	}
	if access.Has(memory.RemoteWrite) {
		rights |= ibv.RemoteWrite
	}
	return rights
}

// Close implements rdma.ProtectionDomain.
func (d *protectionDomain) Close() error {
	d.leaving.Wait()
	if !d.uses.CompareAndSwap(0, math.MinInt64/2) {
		return status.Errorf(status.InUse, "close protection domain: it has memory regions or connections, or is closed")
	}
	err := d.pd.Close()
	d.device.release()
	return err
}

func (d *protectionDomain) use() bool {
	if d.uses.Add(1) > 0 {
		return true
	}
	d.release()
	return false
}

func (d *protectionDomain) release() { d.uses.Add(-1) }

// resolve finds the memory of a local segment that was posted for a use that
// needs the given rights. Without bytes no memory is needed.
func (d *protectionDomain) resolve(segment *rdma.Segment, rights memory.Access) (*memoryRegion, error) {
	if segment.Length == 0 {
		return nil, nil
	}
	r := d.regions.lookup(segment.Key)
	if r == nil {
		return nil, status.Errorf(status.InvalidValue, "local key %#x is not registered in the connection's protection domain", segment.Key)
	}
	if !r.contains(segment.Address, uint64(segment.Length)) {
		return nil, status.Errorf(status.InvalidValue, "segment of %d bytes at %#x is outside the memory region of %d bytes at %#x",
			segment.Length, segment.Address, r.length, r.base)
	}
	if !r.access.Has(rights) {
		return nil, status.Errorf(status.NotPermitted, "memory region with key %#x was registered without LocalWrite", segment.Key)
	}
	return r, nil
}
