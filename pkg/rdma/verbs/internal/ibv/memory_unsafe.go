// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package ibv

// #include "shim.h"
import "C"

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ProtectionDomain groups memory regions and the queue pairs that may use them (ibv_pd).
type ProtectionDomain struct {
	pd      *C.struct_ibv_pd
	foreign bool
}

// NewProtectionDomain allocates a protection domain.
func (c *Context) NewProtectionDomain() (*ProtectionDomain, error) {
	pd, err := C.ibv_alloc_pd(c.context)
	if pd == nil {
		return nil, wrap("allocate protection domain", errnoOf(err))
	}
	return &ProtectionDomain{pd: pd}, nil
}

// ForeignProtectionDomain returns the protection domain of another library at an address, which is
// not 0. It and its device must outlive all use; Close leaves both to the library.
func ForeignProtectionDomain(address uintptr) *ProtectionDomain {
	return &ProtectionDomain{pd: C.zc_domain_at(C.uintptr_t(address)), foreign: true}
}

// Address returns the address of the ibv_pd, which identifies the domain in this process.
func (d *ProtectionDomain) Address() uintptr { return uintptr(unsafe.Pointer(d.pd)) }

// Context returns the device on which the domain exists. Completion queues of its queue pairs must
// be created there.
func (d *ProtectionDomain) Context() *Context { return &Context{context: d.pd.context} }

// Close frees the protection domain. Its memory regions and queue pairs must have been destroyed.
func (d *ProtectionDomain) Close() error {
	if d.foreign {
		return nil
	}
	if errno := C.ibv_dealloc_pd(d.pd); errno != 0 {
		return wrap("free protection domain", unix.Errno(errno))
	}
	return nil
}

// Access is a set of access rights (ibv_access_flags).
type Access uint32

// The access rights. Local reads are always allowed.
const (
	LocalWrite  Access = C.IBV_ACCESS_LOCAL_WRITE
	RemoteRead  Access = C.IBV_ACCESS_REMOTE_READ
	RemoteWrite Access = C.IBV_ACCESS_REMOTE_WRITE
)

// MemoryRegion is registered memory (ibv_mr).
type MemoryRegion struct {
	mr  *C.struct_ibv_mr
	pin runtime.Pinner
}

// Register registers memory. The memory must stay mapped until Deregister returns; memory from the
// Go heap is pinned.
func (d *ProtectionDomain) Register(memory []byte, access Access) (*MemoryRegion, error) {
	m := &MemoryRegion{}
	address := unsafe.Pointer(unsafe.SliceData(memory))
	m.pin.Pin(address)
	mr, err := C.ibv_reg_mr(d.pd, address, C.size_t(len(memory)), C.int(access))
	if mr == nil {
		m.pin.Unpin()
		return nil, wrap("register memory", errnoOf(err))
	}
	m.mr = mr
	return m, nil
}

// LocalKey returns the key that names the memory in this process's work requests.
func (m *MemoryRegion) LocalKey() uint32 { return uint32(m.mr.lkey) }

// RemoteKey returns the key that names the memory in the peer's work requests.
func (m *MemoryRegion) RemoteKey() uint32 { return uint32(m.mr.rkey) }

// Address returns the address of the first byte, as work requests give it.
func (m *MemoryRegion) Address() uint64 { return uint64(uintptr(m.mr.addr)) }

// Deregister revokes both keys and unpins the memory.
func (m *MemoryRegion) Deregister() error {
	if errno := C.ibv_dereg_mr(m.mr); errno != 0 {
		return wrap("deregister memory", unix.Errno(errno))
	}
	m.pin.Unpin()
	return nil
}
