// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca

// #include <stdlib.h>
// #include "skin.h"
import "C"

import (
	"errors"
	"os"
	"runtime/debug"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/broker"
	"github.com/zc-relay/zc-relay/libdoca/internal/link"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// exported is memory that a map has exported, in the process of the exporter and, once imported, in
// that of the importer.
type exported struct {
	*broker.Export
	// In the exporter.
	pages  *sharedPages // what importers can map, or nil
	number *uint64      // of a sync event, or nil
	// In an importer in another process.
	remote *remoteMemory

	// copying is held for reading while the memory is used, so that revoke waits for that.
	copying sync.RWMutex
	revoked bool
}

func (x *exported) revoke() {
	x.copying.Lock()
	defer x.copying.Unlock()
	x.revoked = true
}

// mapping is the core of a memory map.
type mapping struct {
	mu     sync.Mutex
	own    *exported // what the map has exported, or nil
	origin *exported // what the map has imported, or nil
	rdma   *window   // what the map has exported for RDMA, or nil
	peer   link.Key  // of memory that a peer has exported for RDMA
	keys   map[C.uint32_t]verbsKey
}

// verbsKey is a key that the bridge has made for a device.
type verbsKey struct {
	key        uint32
	deregister func()
}

var mappings table[mapping]

// mappingOf returns the core of a map, and makes it if need be. The map belongs to one thread while
// it has none.
func mappingOf(m *C.struct_doca_mmap) *mapping {
	if m.core == 0 {
		m.core = mappings.add(&mapping{keys: make(map[C.uint32_t]verbsKey)})
	}
	return mappings.get(m.core)
}

// minCoreStep is how many pages one system call checks.
const minCoreStep = 1 << 16

// emuMmapStart fails unless all of the range is mapped, as registering it with a device would.
//
//export emuMmapStart
func emuMmapStart(m *C.struct_doca_mmap) C.int {
	page := uintptr(os.Getpagesize())
	start := uintptr(m.addr) &^ (page - 1)
	end := (uintptr(m.addr) + uintptr(m.len) + page - 1) &^ (page - 1)
	var resident [minCoreStep]byte
	for ; start < end; start += minCoreStep * page {
		length := min(end-start, minCoreStep*page)
		_, _, errno := unix.Syscall(unix.SYS_MINCORE, start, length,
			uintptr(unsafe.Pointer(&resident[0])))
		if errno == unix.ENOMEM {
			return C.DOCA_ERROR_INVALID_VALUE
		}
	}
	mappingOf(m)
	return C.DOCA_SUCCESS
}

// Kinds of descriptors. exportEvent stands for a sync event that peers reach over RDMA.
const (
	exportPCI      = broker.KindPCI
	exportRDMA     = C.EMU_EXPORT_RDMA
	exportEvent    = C.EMU_EXPORTS
	exportEventPCI = broker.KindEventPCI
)

// parse decodes a descriptor that an application hands over.
func parse(b unsafe.Pointer, length C.size_t) (broker.Descriptor, error) {
	// More than MaxSize bytes are no descriptor.
	return broker.Parse(C.GoBytes(b, C.int(min(length, broker.MaxSize+1))))
}

//export emuMmapExport
func emuMmapExport(m *C.struct_doca_mmap, kind C.int, desc *unsafe.Pointer, length *C.size_t,
) C.int {
	own := mappingOf(m)
	own.mu.Lock()
	defer own.mu.Unlock()
	var b []byte
	if kind == C.EMU_EXPORT_RDMA {
		own.rdma = openWindow(viewOf(m), uintptr(m.addr), uintptr(m.len), uint32(m.access))
		b = own.rdma.descriptor(exportRDMA).Encode()
	} else {
		var err error
		if own.own, err = newExport(m); err != nil {
			return failed("export mmap", err)
		}
		b = own.own.Encode()
	}
	*desc = C.CBytes(b)
	*length = C.size_t(len(b))
	return C.DOCA_SUCCESS
}

func newExport(m *C.struct_doca_mmap) (*exported, error) {
	x := &exported{Export: &broker.Export{Descriptor: broker.Descriptor{Kind: exportPCI,
		Access: uint32(m.access), Address: uint64(m.addr), Length: uint64(m.len)}}}
	x.Source = x
	if !active.Load().KeepPages {
		x.pages = sharePages(uintptr(m.addr), uintptr(m.len))
	}
	if err := exports.Add(x.Export); err != nil {
		x.pages.release()
		return nil, err
	}
	return x, nil
}

//export emuFreeExport
func emuFreeExport(desc unsafe.Pointer) { C.free(desc) }

//export emuMmapImport
func emuMmapImport(m *C.struct_doca_mmap, desc unsafe.Pointer, length C.size_t, pci C.bool) C.int {
	said, err := parse(desc, length)
	if err == nil && (said.Kind == exportEvent || said.Kind == exportEventPCI) {
		err = status.Errorf(status.InvalidValue, "the descriptor is that of a sync event")
	}
	if err != nil {
		return failed("create mmap from export", err)
	}
	if said.Kind == exportRDMA {
		m.addr, m.len, m.access = C.uintptr_t(said.Address), C.size_t(said.Length),
			C.uint32_t(said.Access)
		m.of_peer = true
		mappingOf(m).peer = link.Key(said.ID)
		return C.DOCA_SUCCESS
	}
	if !bool(pci) {
		return failed("create mmap from export", status.Errorf(status.NotSupported,
			"only a device of a DPU imports memory of its host"))
	}
	origin, local, err := importMemory(&said)
	if err != nil {
		return failed("create mmap from export", err)
	}
	m.addr, m.len, m.access = C.uintptr_t(origin.Address), C.size_t(origin.Length),
		C.uint32_t(origin.Access)
	m.mapped_at = C.uintptr_t(local)
	mappingOf(m).origin = origin
	return C.DOCA_SUCCESS
}

// importMemory finds what a descriptor describes, and where this process has it.
func importMemory(said *broker.Descriptor) (origin *exported, local uintptr, err error) {
	found := exports.Find(said.ID)
	if found == nil {
		return importRemote(said)
	}
	origin = found.Source.(*exported)
	if origin.Descriptor != *said {
		return nil, 0, status.Errorf(status.InvalidValue,
			"the descriptor is not that of the memory")
	}
	return origin, uintptr(origin.Address), nil
}

// emuMmapRelease ends what others have of a map.
//
//export emuMmapRelease
func emuMmapRelease(m *C.struct_doca_mmap) {
	if m.core == 0 {
		return
	}
	released := mappings.get(m.core)
	mappings.remove(m.core)
	m.core = 0
	for _, key := range released.keys {
		key.deregister()
	}
	if released.rdma != nil {
		released.rdma.close()
	}
	if released.own != nil {
		exports.Remove(released.own.Export)
		released.own.revoke()
		released.own.pages.release()
	}
	if released.origin != nil && released.origin.remote != nil {
		released.origin.remote.close()
	}
}

//export emuMmapKey
func emuMmapKey(m *C.struct_doca_mmap, device C.uint32_t, key *C.uint32_t) C.int {
	bridge := active.Load().Bridge
	if bridge == nil {
		return C.DOCA_ERROR_NOT_SUPPORTED
	}
	if m.mapped_at == 0 {
		return failed("get key of mmap", status.Errorf(status.NotSupported,
			"this process cannot map the memory of the exporter"))
	}
	own := mappingOf(m)
	own.mu.Lock()
	defer own.mu.Unlock()
	made, ok := own.keys[device]
	if !ok {
		memory := unsafe.Slice((*byte)(pointer(uintptr(m.mapped_at))), int(m.len))
		var err error
		made.key, made.deregister, err = bridge.Register(active.Load().Devices[device].IBDevice,
			memory, uint64(m.addr), uint32(m.access))
		if err != nil {
			return failed("get key of mmap", err)
		}
		own.keys[device] = made
	}
	*key = C.uint32_t(made.key)
	return C.DOCA_SUCCESS
}

//export emuProtectionDomain
func emuProtectionDomain(device C.uint32_t, pd *unsafe.Pointer) C.int {
	bridge := active.Load().Bridge
	if bridge == nil {
		return C.DOCA_ERROR_NOT_SUPPORTED
	}
	found, err := bridge.ProtectionDomain(active.Load().Devices[device].IBDevice)
	if err != nil {
		return failed("get protection domain", err)
	}
	*pd = found
	return C.DOCA_SUCCESS
}

var errRevoked = status.Errorf(status.IOFailed, "the exporter has taken the memory away")

// copyMemory copies length bytes between two maps; the addresses are those that exporters know. An
// address without memory behind it becomes an IOFailed error.
func copyMemory(dst *C.struct_doca_mmap, to uintptr, src *C.struct_doca_mmap, from, length uintptr,
) error {
	held, err := use(dst, src)
	if err != nil {
		return err
	}
	defer held.release()
	if dst.mapped_at != 0 && src.mapped_at != 0 {
		return copyGuarded(bytesOf(dst, to, length), bytesOf(src, from, length))
	}
	bounce := make([]byte, min(length, bounceLength))
	for done := uintptr(0); done < length; {
		part := bounce[:min(length-done, bounceLength)]
		if err := load(part, src, from+done); err != nil {
			return err
		}
		if err := store(dst, to+done, part); err != nil {
			return err
		}
		done += uintptr(len(part))
	}
	return nil
}

// bounceLength is how many bytes are copied at a time to or from another process.
const bounceLength = 64 << 10

// load copies from a map into memory of Go.
func load(to []byte, src *C.struct_doca_mmap, from uintptr) error {
	v := viewOf(src)
	return v.load(to, from)
}

// store copies from memory of Go into a map.
func store(dst *C.struct_doca_mmap, to uintptr, from []byte) error {
	v := viewOf(dst)
	return v.store(to, from)
}

// view is the memory behind a map. It does not need the map.
type view struct {
	base, mapped uintptr   // the address that the exporter knows, and that of this process, or 0
	origin       *exported // of imported memory
}

func viewOf(m *C.struct_doca_mmap) view {
	return view{uintptr(m.addr), uintptr(m.mapped_at), mappings.get(m.core).origin}
}

// load and store copy without asking whether the exporter has taken the memory away.
func (v *view) load(to []byte, from uintptr) error {
	if v.mapped != 0 {
		return copyGuarded(to, v.bytes(from, len(to)))
	}
	return v.origin.remote.read(to, from)
}

func (v *view) store(to uintptr, from []byte) error {
	if v.mapped != 0 {
		return copyGuarded(v.bytes(to, len(from)), from)
	}
	return v.origin.remote.write(to, from)
}

func (v *view) bytes(address uintptr, length int) []byte {
	return unsafe.Slice((*byte)(pointer(v.mapped+address-v.base)), length)
}

// withMemory calls f while the exporter cannot take the memory away.
func (v *view) withMemory(f func() error) error {
	if v.origin == nil {
		return f()
	}
	v.origin.copying.RLock()
	defer v.origin.copying.RUnlock()
	if v.origin.revoked {
		return errRevoked
	}
	return f()
}

// inUse holds the exporters of the two maps of a copy, who cannot take the memory away until
// release. An element is nil if there is none, or if it is the other one, too.
type inUse [2]*exported

// use returns the exporters of both maps.
func use(dst, src *C.struct_doca_mmap) (held inUse, err error) {
	for i, m := range [...]*C.struct_doca_mmap{dst, src} {
		if m.of_peer {
			held.release()
			return inUse{}, status.Errorf(status.NotPermitted,
				"the memory is a peer's: only tasks of RDMA can use it")
		}
		origin := mappings.get(m.core).origin
		if origin == nil || origin == held[0] {
			continue
		}
		origin.copying.RLock()
		held[i] = origin
		if origin.revoked {
			held.release()
			return held, errRevoked
		}
	}
	return held, nil
}

func (held *inUse) release() {
	for _, x := range held {
		if x != nil {
			x.copying.RUnlock()
		}
	}
}

// bytesOf returns the memory of this process behind a range of a map.
func bytesOf(m *C.struct_doca_mmap, address, length uintptr) []byte {
	return unsafe.Slice((*byte)(pointer(uintptr(m.mapped_at)+address-uintptr(m.addr))), length)
}

// pointer returns a pointer to memory outside of Go's heap.
func pointer(address uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&address)) }

// copyGuarded copies memory of the application, which may not be there any more.
func copyGuarded(dst, src []byte) (err error) {
	previous := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(previous)
		if fault := recover(); fault != nil {
			err = faultError(fault)
		}
	}()
	copy(dst, src)
	return nil
}

// faultError turns a memory fault into an error and re-raises every other panic.
func faultError(fault any) error {
	cause, ok := fault.(interface {
		error
		Addr() uintptr
	})
	if !ok {
		panic(fault)
	}
	return status.Errorf(status.IOFailed, "memory at %#x is not there: %w", cause.Addr(),
		errors.New("the application has unmapped it"))
}

// addressOf returns the address of memory outside of Go's heap.
func addressOf(memory []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(memory))) }
