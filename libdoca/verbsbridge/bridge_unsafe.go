// SPDX-License-Identifier: Apache-2.0

//go:build cgo

// Package verbsbridge connects the emulation of libdoca to RDMA devices of the machine: memory that
// it imports gets a real key in a real protection domain, as on a BlueField. It loads libibverbs by
// itself, because libdoca does not share the device with the relay's RDMA provider either.
package verbsbridge

// #cgo LDFLAGS: -ldl
// #include <dlfcn.h>
// #include <errno.h>
// #include <stddef.h>
// #include <stdint.h>
// #include <stdlib.h>
// #include <string.h>
//
// struct ibv_mr { // as in infiniband/verbs.h
//	void *context, *pd, *address;
//	size_t length;
//	uint32_t handle, lkey, rkey;
// };
//
// static struct {
//	void **(*get_device_list)(int *count);
//	void (*free_device_list)(void **list);
//	const char *(*get_device_name)(void *device);
//	void *(*open_device)(void *device);
//	void *(*alloc_pd)(void *context);
//	struct ibv_mr *(*reg_mr_iova)(void *pd, void *address, size_t length, uint64_t iova,
//				      int access);
//	int (*dereg_mr)(struct ibv_mr *mr);
// } verbs;
//
// // zcb_load returns what is missing, or NULL.
// static const char *zcb_load(void)
// {
//	void *library = dlopen("libibverbs.so.1", RTLD_NOW);
//
//	if (!library)
//		return dlerror();
// #define LOAD(name)                                                \
//	verbs.name = (__typeof__(verbs.name))dlsym(library, "ibv_" #name); \
//	if (!verbs.name)                                          \
//		return dlerror();
//	LOAD(get_device_list)
//	LOAD(free_device_list)
//	LOAD(get_device_name)
//	LOAD(open_device)
//	LOAD(alloc_pd)
//	LOAD(reg_mr_iova)
//	LOAD(dereg_mr)
//	return NULL;
// }
//
// // zcb_domain opens a device and returns a new protection domain on it, or NULL and errno.
// static void *zcb_domain(const char *name)
// {
//	void **list = verbs.get_device_list(NULL);
//	void *context = NULL, *pd;
//
//	errno = ENODEV;
//	for (void **device = list; device && *device && !context; device++)
//		if (strcmp(verbs.get_device_name(*device), name) == 0)
//			context = verbs.open_device(*device);
//	pd = context ? verbs.alloc_pd(context) : NULL;
//	if (list)
//		verbs.free_device_list(list);
//	return pd;
// }
//
// static struct ibv_mr *zcb_register(void *pd, void *address, size_t length, uint64_t iova,
//				   int access)
// {
//	return verbs.reg_mr_iova(pd, address, length, iova, access);
// }
//
// static void zcb_deregister(struct ibv_mr *mr) { verbs.dereg_mr(mr); }
import "C"

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Bridge implements libdoca.Bridge. The zero value is usable.
type Bridge struct {
	mu      sync.Mutex
	loaded  bool
	domains map[string]unsafe.Pointer // by device; they live as long as the process
}

// ProtectionDomain returns the one domain of a device.
func (b *Bridge) ProtectionDomain(device string) (unsafe.Pointer, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.loaded {
		if missing := C.zcb_load(); missing != nil {
			return nil, status.Errorf(status.NotSupported, "load libibverbs: %s",
				C.GoString(missing))
		}
		b.loaded = true
		b.domains = make(map[string]unsafe.Pointer)
	}
	if pd := b.domains[device]; pd != nil {
		return pd, nil
	}
	name := C.CString(device)
	defer C.free(unsafe.Pointer(name))
	pd, err := C.zcb_domain(name)
	if pd == nil {
		return nil, fmt.Errorf("allocate a protection domain on RDMA device %q: %w", device, err)
	}
	b.domains[device] = pd
	return pd, nil
}

// Rights of verbs (ibv_access_flags), and of DOCA (doca_access_flag).
const (
	localWrite, remoteWrite, remoteRead = 1, 2, 4
	pciReadOnly, pciReadWrite           = 16, 32
)

// Register registers memory under the addresses that its exporter knows.
func (b *Bridge) Register(device string, memory []byte, address uint64, access uint32) (uint32,
	func(), error) {
	pd, err := b.ProtectionDomain(device)
	if err != nil {
		return 0, nil, err
	}
	rights := 0
	if access&(pciReadOnly|pciReadWrite) != 0 {
		rights |= remoteRead
	}
	if access&pciReadWrite != 0 {
		rights |= localWrite | remoteWrite
	}
	mr, err := C.zcb_register(pd, unsafe.Pointer(unsafe.SliceData(memory)),
		C.size_t(len(memory)), C.uint64_t(address), C.int(rights))
	if mr == nil {
		return 0, nil, fmt.Errorf("register %d bytes with RDMA device %q: %w", len(memory), device,
			err)
	}
	return uint32(mr.rkey), func() { C.zcb_deregister(mr) }, nil
}
