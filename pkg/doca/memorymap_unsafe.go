// SPDX-License-Identifier: Apache-2.0

package doca

// #include "shim.h"
//
// #define STEP(name, ...) do { *step = "doca_" #name; result = f->name(__VA_ARGS__); } while (0)
//
// // zcd_map_open makes a memory map of local memory.
// static doca_error_t zcd_map_open(zcd_table f, struct doca_dev *device,
//	void *address, size_t length, uint32_t permissions, struct doca_mmap **map, const char **step)
// {
//	doca_error_t result;
//
//	STEP(mmap_create, map);
//	if (result != DOCA_SUCCESS)
//		return result;
//	STEP(mmap_add_dev, *map, device);
//	if (result == DOCA_SUCCESS)
//		STEP(mmap_set_memrange, *map, address, length);
//	if (result == DOCA_SUCCESS)
//		STEP(mmap_set_permissions, *map, permissions);
//	if (result == DOCA_SUCCESS && f->mmap_enable_thread_safety)
//		STEP(mmap_enable_thread_safety, *map);
//	if (result == DOCA_SUCCESS)
//		STEP(mmap_start, *map);
//	if (result != DOCA_SUCCESS)
//		f->mmap_destroy(*map);
//	return result;
// }
//
// static doca_error_t zcd_map_export(zcd_table f, struct doca_mmap *map,
//	struct doca_dev *device, const void **blob, size_t *length)
// { return f->mmap_export_pci(map, device, blob, length); }
//
// static doca_error_t zcd_map_export_rdma(zcd_table f, struct doca_mmap *map,
//	struct doca_dev *device, const void **blob, size_t *length)
// { return f->mmap_export_rdma(map, device, blob, length); }
//
// static doca_error_t zcd_map_import(zcd_table f, struct doca_dev *device,
//	const void *blob, size_t blob_length, struct doca_mmap **map, void **address, size_t *length,
//	const char **step)
// {
//	doca_error_t result;
//
//	STEP(mmap_create_from_export, NULL, blob, blob_length, device, map);
//	if (result != DOCA_SUCCESS)
//		return result;
//	if (f->mmap_enable_thread_safety)
//		STEP(mmap_enable_thread_safety, *map);
//	if (result == DOCA_SUCCESS)
//		STEP(mmap_get_memrange, *map, address, length);
//	if (result != DOCA_SUCCESS)
//		f->mmap_destroy(*map);
//	return result;
// }
//
// static doca_error_t zcd_map_close(zcd_table f, struct doca_mmap *map)
// { return f->mmap_destroy(map); }
//
// static doca_error_t zcd_map_can_export(zcd_table f, struct doca_devinfo *info, uint8_t *yes)
// { return f->mmap_cap_is_export_pci_supported(info, yes); }
// static doca_error_t zcd_map_can_import(zcd_table f, struct doca_devinfo *info, uint8_t *yes)
// { return f->mmap_cap_is_create_from_export_pci_supported(info, yes); }
import "C"

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"unsafe"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// maxBlob bounds the description of exported memory that libdoca returns, in bytes.
const maxBlob = 1 << 16

// MemoryMap is memory that a device can reach: a started doca_mmap, either of this process or
// imported from a peer.
type MemoryMap struct {
	device *Device
	mmap   *C.struct_doca_mmap
	base   uint64
	length uint64
	pinned runtime.Pinner

	once sync.Once
	err  error
}

// MapMemory registers memory of this process with the device. access decides what devices and peers
// may do with it. The memory must stay allocated until Close; memory of the Go heap is pinned.
func (d *Device) MapMemory(bytes []byte, access memory.Access) (*MemoryMap, error) {
	if len(bytes) == 0 {
		return nil, status.Errorf(status.InvalidValue, "register memory with %v: it is empty", d)
	}
	address := unsafe.Pointer(unsafe.SliceData(bytes))
	m := &MemoryMap{device: d, base: uint64(uintptr(address)), length: uint64(len(bytes))}
	m.pinned.Pin(address)
	var step *C.char
	result := C.zcd_map_open(d.library.table, d.dev, address, C.size_t(len(bytes)),
		permissions(access), &m.mmap, &step)
	if err := d.library.failure(fmt.Sprintf("register %d bytes of memory with %v: %s", len(bytes),
		d, C.GoString(step)), result); err != nil {
		m.pinned.Unpin()
		return nil, err
	}
	d.acquire()
	return m, nil
}

// permissions translates rights into DOCA's flags. A device can always read local memory.
func permissions(access memory.Access) C.uint32_t {
	var flags C.uint32_t
	for _, right := range []struct {
		access memory.Access
		flag   C.uint32_t
	}{
		{memory.LocalWrite, C.DOCA_ACCESS_FLAG_LOCAL_READ_WRITE},
		{memory.RemoteRead, C.DOCA_ACCESS_FLAG_RDMA_READ},
		{memory.RemoteWrite, C.DOCA_ACCESS_FLAG_RDMA_WRITE},
	} {
		if access.Has(right.access) {
			flags |= right.flag
		}
	}
	switch {
	case access.Has(memory.PCIWrite): // includes reading
		flags |= C.DOCA_ACCESS_FLAG_PCI_READ_WRITE | C.DOCA_ACCESS_FLAG_LOCAL_READ_WRITE
	case access.Has(memory.PCIRead):
		flags |= C.DOCA_ACCESS_FLAG_PCI_READ_ONLY
	}
	return flags
}

// Export returns what a peer on the other side of the PCIe bus needs to import the memory. Whoever
// has it can use the memory with the rights that it was mapped with, until Close.
func (m *MemoryMap) Export() ([]byte, error) {
	var blob unsafe.Pointer
	var length C.size_t
	result := C.zcd_map_export(m.device.library.table, m.mmap, m.device.dev, &blob, &length)
	return m.exported(result, blob, length)
}

// ExportRDMA returns what a peer on the network needs to reach the memory by RDMA. Memory that was
// imported over the PCIe bus can be exported, too. Whoever has it can use the memory with the
// rights that it was mapped with, until Close.
func (m *MemoryMap) ExportRDMA() ([]byte, error) {
	var blob unsafe.Pointer
	var length C.size_t
	result := C.zcd_map_export_rdma(m.device.library.table, m.mmap, m.device.dev, &blob, &length)
	return m.exported(result, blob, length)
}

// exported copies the description of exported memory, which belongs to the map.
func (m *MemoryMap) exported(
	result C.doca_error_t, blob unsafe.Pointer, length C.size_t,
) ([]byte, error) {
	if err := m.device.library.failure("export memory", result); err != nil {
		return nil, err
	}
	if length == 0 || length > maxBlob {
		return nil, status.Errorf(status.Unexpected,
			"export memory: libdoca describes it with %d bytes", uint64(length))
	}
	return C.GoBytes(blob, C.int(length)), nil
}

// ImportMemory makes a map of memory that a peer has exported with MemoryMap.Export or ExportRDMA.
// blob may hold any bytes.
func (d *Device) ImportMemory(blob []byte) (*MemoryMap, error) {
	if len(blob) == 0 {
		return nil, status.Errorf(status.InvalidValue, "import memory: nothing was exported")
	}
	m := &MemoryMap{device: d}
	var address unsafe.Pointer
	var length C.size_t
	var step *C.char
	result := C.zcd_map_import(d.library.table, d.dev, unsafe.Pointer(unsafe.SliceData(blob)),
		C.size_t(len(blob)), &m.mmap, &address, &length, &step)
	if err := d.library.failure("import memory with "+d.String()+": "+C.GoString(step),
		result); err != nil {
		return nil, err
	}
	d.acquire()
	m.base, m.length = uint64(uintptr(address)), uint64(length)
	if m.length == 0 || m.base > math.MaxUint64-m.length {
		_ = m.Close()
		return nil, status.Errorf(status.InvalidValue, "import memory: %d bytes at %#x", m.length,
			m.base)
	}
	return m, nil
}

// Device returns the device that can reach the memory.
func (m *MemoryMap) Device() *Device { return m.device }

// Base returns the address of the first byte. For imported memory it is the exporter's address.
func (m *MemoryMap) Base() uint64 { return m.base }

// Len returns the length in bytes.
func (m *MemoryMap) Len() uint64 { return m.length }

// Key returns the key of the memory in the device's protection domain, in host byte order. On
// NVIDIA's hardware it is both local and remote key.
func (m *MemoryMap) Key() (uint32, error) {
	var key C.uint32_t
	var step *C.char
	l := m.device.library
	result := C.zcd_mmap_key(l.table, m.mmap, m.device.dev, &key, &step)
	return uint32(key), l.failure("get key of memory: "+C.GoString(step), result)
}

// Close destroys the map and revokes all access through it. Nothing may use it any more. Later
// calls return the result of the first.
func (m *MemoryMap) Close() error {
	m.once.Do(func() {
		l := m.device.library
		m.err = l.failure("close memory map", C.zcd_map_close(l.table, m.mmap))
		if m.err != nil {
			leaked.Store(m, nil)
			return
		}
		m.pinned.Unpin()
		m.err = m.device.Close()
	})
	return m.err
}

// leaked holds the memory maps that could not be closed. A device may still reach their memory, so
// it stays pinned.
var leaked sync.Map

// CanExport reports whether memory of this process can be exported through the device.
func (d *Device) CanExport() bool {
	var yes C.uint8_t
	return C.zcd_map_can_export(d.library.table, d.info, &yes) == C.DOCA_SUCCESS && yes != 0
}

// CanImport reports whether memory that a peer has exported can be imported with the device.
func (d *Device) CanImport() bool {
	var yes C.uint8_t
	return C.zcd_map_can_import(d.library.table, d.info, &yes) == C.DOCA_SUCCESS && yes != 0
}
