// Package memory describes memory that is reached by data paths: regions that
// are allocated here, imported from a peer, or owned by a device.
package memory

import (
	"fmt"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Access is a set of rights to a region, as they are granted at registration
// or by an export.
type Access uint32

// The access rights. Local reads are always allowed.
const (
	// LocalWrite lets the owner's device write: receives and RDMA Read sinks.
	LocalWrite Access = 1 << iota
	// RemoteRead lets a peer read by RDMA Read.
	RemoteRead
	// RemoteWrite lets a peer write by RDMA Write.
	RemoteWrite
	// PCIRead and PCIWrite let the other side of a Comch connection read and
	// write the region directly.
	PCIRead
	PCIWrite

	allAccess = LocalWrite | RemoteRead | RemoteWrite | PCIRead | PCIWrite
)

// Has reports whether a includes every right in rights.
func (a Access) Has(rights Access) bool { return a&rights == rights }

// Valid reports whether a has no undefined bits.
func (a Access) Valid() bool { return a&^allAccess == 0 }

// Region is a range of memory. It is either mapped, and then has Bytes, or
// opaque: the CPU cannot touch it and only the provider named by its Handle
// can. Its methods may be called concurrently; Close may not overlap uses of
// the memory.
type Region struct {
	bytes      []byte
	length     uint64
	base       uint64
	handle     any
	descriptor int
	untrusted  bool

	closeOnce sync.Once
	closeErr  error
	release   func() error
}

// Wrap makes a mapped region of memory that the caller owns and keeps alive.
// It has no descriptor and therefore cannot be exported to another process.
func Wrap(b []byte) *Region {
	return &Region{bytes: b, length: uint64(len(b)), descriptor: -1}
}

// NewOpaque makes a region of device memory. handle, which is not nil, is what
// the provider that owns it needs to use it, base the address by which that provider's peers
// name its first byte, length its size in bytes; release may be nil.
func NewOpaque(handle any, base, length uint64, release func() error) *Region {
	return &Region{handle: handle, base: base, length: length, descriptor: -1, release: release}
}

// Bytes is the memory of a mapped region, nil if the region is opaque. If the
// region is Untrusted it must not be touched directly: use CopyIn and CopyOut
// or system calls.
func (r *Region) Bytes() []byte { return r.bytes }

// Len is the length in bytes.
func (r *Region) Len() uint64 { return r.length }

// Base is the address of the first byte of an opaque region in its provider's
// own terms; 0 for mapped regions.
func (r *Region) Base() uint64 { return r.base }

// Handle identifies an opaque region to its provider; nil if it is mapped.
func (r *Region) Handle() any { return r.handle }

// Mapped reports whether the CPU can address the region.
func (r *Region) Mapped() bool { return r.handle == nil }

// Descriptor is the file descriptor behind the mapping, -1 if there is none.
// It belongs to the region.
func (r *Region) Descriptor() int { return r.descriptor }

// Untrusted reports whether another process can take pages of this mapping
// away, so that touching it may fault.
func (r *Region) Untrusted() bool { return r.untrusted }

// CheckRange returns an InvalidValue error unless offset and length lie
// within the region.
func (r *Region) CheckRange(offset, length uint64) error {
	if offset > r.length || length > r.length-offset {
		return status.Errorf(status.InvalidValue,
			"range of %d bytes at offset %d is outside the region of %d bytes", length, offset, r.length)
	}
	return nil
}

// Close unmaps the memory and closes its descriptor. The second and later
// calls return what the first did.
func (r *Region) Close() error {
	r.closeOnce.Do(func() {
		if r.release == nil {
			return
		}
		if err := r.release(); err != nil {
			r.closeErr = fmt.Errorf("release memory region of %d bytes: %w", r.length, err)
		}
	})
	return r.closeErr
}
