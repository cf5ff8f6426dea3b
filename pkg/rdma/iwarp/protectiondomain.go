package iwarp

import (
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// protectionDomain implements rdma.ProtectionDomain.
type protectionDomain struct {
	device *device
	uses   useCount // memory regions and connections
}

// Register implements rdma.ProtectionDomain. Only mapped memory can be taken.
func (d *protectionDomain) Register(region *memory.Region, access memory.Access) (rdma.MemoryRegion, error) {
	if !region.Mapped() {
		return nil, status.Errorf(status.NotSupported,
			"register memory of %d bytes: it belongs to a device and iwarp needs memory that the CPU can address", region.Len())
	}
	if !access.Valid() {
		return nil, status.Errorf(status.InvalidValue, "register memory: access rights %#x are not defined", uint32(access))
	}
	if !d.uses.acquire() {
		return nil, status.Errorf(status.BadState, "register memory: protection domain is closed")
	}
	r := &memoryRegion{
		uses: newUseCount(), access: access, untrusted: region.Untrusted(),
		bytes: region.Bytes(), region: region, domain: d,
	}
	if err := d.device.table.insert(r); err != nil {
		d.uses.release()
		return nil, err
	}
	return r, nil
}

// Close implements rdma.ProtectionDomain.
func (d *protectionDomain) Close() error {
	if !d.uses.revokeUnused() {
		return status.Errorf(status.InUse, "close protection domain: it has memory regions or connections, or is closed")
	}
	d.device.uses.release()
	return nil
}

// resolve finds the memory of a local segment that was posted for a use that
// needs the given rights. Without bytes no memory is needed.
func (d *protectionDomain) resolve(local rdma.Segment, rights memory.Access) (*memoryRegion, error) {
	if local.Length == 0 {
		return nil, nil
	}
	r := d.device.table.lookup(local.Key)
	if r == nil || r.domain != d {
		return nil, status.Errorf(status.InvalidValue, "local key %#x is not registered in the connection's protection domain", local.Key)
	}
	if !r.contains(local.Address, uint64(local.Length)) {
		return nil, status.Errorf(status.InvalidValue,
			"segment of %d bytes at %#x is outside the memory region of %d bytes", local.Length, local.Address, len(r.bytes))
	}
	if !r.access.Has(rights) {
		return nil, status.Errorf(status.NotPermitted, "memory region with key %#x was registered without LocalWrite", local.Key)
	}
	return r, nil
}
