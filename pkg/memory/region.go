// SPDX-License-Identifier: Apache-2.0

// Package memory describes the memory that data paths use: regions that are allocated here,
// imported from a peer, or owned by a device.
package memory

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Access is a set of rights to a region, granted when it is registered or exported.
type Access uint32

// The access rights. Local reads are always allowed.
const (
	// LocalWrite lets the owner's device write: receives and the sinks of RDMA Reads.
	LocalWrite Access = 1 << iota
	// RemoteRead lets a peer read by RDMA Read.
	RemoteRead
	// RemoteWrite lets a peer write by RDMA Write.
	RemoteWrite
	// PCIRead and PCIWrite let the other side of a Comch connection read and write the region
	// directly.
	PCIRead
	PCIWrite

	allAccess = LocalWrite | RemoteRead | RemoteWrite | PCIRead | PCIWrite
)

// Has reports whether a includes every right in rights.
func (a Access) Has(rights Access) bool { return a&rights == rights }

// Valid reports whether a has only defined bits.
func (a Access) Valid() bool { return a&^allAccess == 0 }

// Region is a range of memory. A mapped region has Bytes. An opaque region cannot be touched by the
// CPU, only by devices that its Handle gives access to, or by system calls if that is a Copier. The
// methods may be called concurrently, but Close must not overlap any use of the memory.
type Region struct {
	bytes      []byte
	length     uint64
	base       uint64
	handle     Handle
	descriptor int
	untrusted  bool
	loans      atomic.Int64  // started so far
	keepers    *atomic.Int64 // of the loan of a view without a descriptor: see Region.KeepLoan
	claims     claims

	closeOnce sync.Once
	closeErr  error
	release   func() error
}

// Wrap makes a mapped region of memory that the caller owns and keeps alive. The region has no
// descriptor, so no other process can map it. If a device is to reach it, the memory must be
// outside of the Go heap, for instance memory of mmap(2) or of C.
func Wrap(b []byte) *Region {
	return &Region{bytes: b, length: uint64(len(b)), base: baseOf(b), descriptor: -1}
}

var _ io.Closer = (*Region)(nil)

// Handle is what a provider needs to use an opaque region. Only providers look behind it, by
// asserting an interface or a type that they know: rdma.ForeignMemory for instance.
type Handle interface {
	// Device returns the device that the region belongs to.
	Device() Device
}

// Device names the hardware device that memory belongs to. An empty name is not known.
type Device struct {
	PCI  string // the address in its shortest form, for instance "03:00.0"
	RDMA string // for instance "mlx5_0"
}

// CanBe reports whether two names can mean the same device. The functions of a DPU and their
// sub-functions share a PCI address, so names of RDMA devices decide if both are known.
func (d Device) CanBe(other Device) bool {
	if d.RDMA != "" && other.RDMA != "" {
		return d.RDMA == other.RDMA
	}
	return d.PCI == "" || other.PCI == "" || d.PCI == other.PCI
}

// String returns the names, for instance "03:00.0 (mlx5_0)".
func (d Device) String() string {
	switch {
	case d.PCI == "" && d.RDMA == "":
		return "an unknown device"
	case d.RDMA == "":
		return d.PCI
	case d.PCI == "":
		return d.RDMA
	}
	return d.PCI + " (" + d.RDMA + ")"
}

// NewOpaque makes a region of device memory. handle is what its provider needs to use it and must
// not be nil. base is the address of the first byte as its exporter knows it, and length the size
// in bytes. release may be nil.
func NewOpaque(handle Handle, base, length uint64, release func() error) *Region {
	return &Region{handle: handle, base: base, length: length, descriptor: -1, release: release}
}

// Bytes returns the memory of a mapped region, or nil for an opaque one. Do not touch the memory of
// an Untrusted region directly: use CopyIn, CopyOut, or system calls.
func (r *Region) Bytes() []byte { return r.bytes }

// Len returns the length in bytes.
func (r *Region) Len() uint64 { return r.length }

// Base returns the address of the first byte as the owner of the memory knows it: the address in
// this process for memory of its own, and the address in the exporter's for an imported region.
func (r *Region) Base() uint64 { return r.base }

// Handle identifies an opaque region to its provider; it is nil for a mapped region.
func (r *Region) Handle() Handle { return r.handle }

// Device returns the device that an opaque region belongs to. Mapped memory belongs to none.
func (r *Region) Device() Device {
	if r.handle == nil {
		return Device{}
	}
	return r.handle.Device()
}

// Mapped reports whether the CPU can address the region.
func (r *Region) Mapped() bool { return r.handle == nil }

// Descriptor returns the file descriptor behind the mapping, or -1 if there is none. The region
// owns it.
func (r *Region) Descriptor() int { return r.descriptor }

// Untrusted reports whether another process can take away pages of the mapping, so that touching it
// may fault.
func (r *Region) Untrusted() bool { return r.untrusted }

// CheckRange returns an InvalidValue error unless the range lies within the region.
func (r *Region) CheckRange(offset, length uint64) error {
	if offset > r.length || length > r.length-offset {
		return status.Errorf(status.InvalidValue,
			"range of %d bytes at offset %d is outside the region of %d bytes",
			length, offset, r.length)
	}
	return nil
}

// OnClose makes Close call f after it has released the memory. Call it before others use the
// region.
func (r *Region) OnClose(f func() error) {
	release := r.release
	r.release = func() error {
		if release == nil {
			return f()
		}
		return errors.Join(release(), f())
	}
}

// Close unmaps the memory and closes its descriptor. Later calls return the result of the first.
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
