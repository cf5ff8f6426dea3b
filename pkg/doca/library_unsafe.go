// SPDX-License-Identifier: Apache-2.0

package doca

// #include <stdlib.h>
// #include "shim.h"
//
// static const char *zcd_version(zcd_table f)
// {
//	return f->version_runtime ? f->version_runtime() : NULL;
// }
//
// static const char *zcd_describe(zcd_table f, doca_error_t code)
// {
//	return f->error_get_descr(code);
// }
//
// static doca_error_t zcd_log(zcd_table f, int descriptor, uint32_t level)
// {
//	struct doca_log_backend *backend;
//	doca_error_t result;
//
//	if (!f->log_backend_create_with_fd_sdk || !f->log_backend_set_sdk_level)
//		return DOCA_ERROR_NOT_SUPPORTED;
//	result = f->log_backend_create_with_fd_sdk(descriptor, &backend);
//	return result == DOCA_SUCCESS ? f->log_backend_set_sdk_level(backend, level) : result;
// }
import "C"

import (
	"sync"
	"unsafe"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// part is one of the shared objects that make up libdoca.
type part uint32

const (
	common part = C.zcd_library_common
	comch  part = C.zcd_library_comch
	dma    part = C.zcd_library_dma
	rdma   part = C.zcd_library_rdma
)

// partNames holds the base names of the files.
var partNames = [...]string{
	common: "libdoca_common", comch: "libdoca_comch", dma: "libdoca_dma", rdma: "libdoca_rdma",
}

// partPackages holds the packages that bring them.
var partPackages = [...]string{
	common: "doca-sdk-common", comch: "doca-sdk-comch", dma: "doca-sdk-dma",
	rdma: "doca-sdk-rdma",
}

// Loader opens libdoca when it is first needed, once.
type Loader struct {
	find    source
	once    sync.Once
	library *Library
	err     error
}

// System returns the Loader of the shared libraries of this machine. It looks in the directories
// ZC_DOCA_LIB_PATH and DOCA_SDK_LIB_PATH, then where the dynamic linker looks, and then where DOCA
// installs them. All callers share one Loader.
func System() *Loader { return &system }

var system = Loader{find: sharedObjects(nil)}

// Resolved returns a Loader that takes DOCA functions from resolve instead of shared libraries:
// from an emulation. resolve returns the address of the C function with the given full name, or nil
// if the emulated release does not have it.
func Resolved(resolve func(name string) unsafe.Pointer) *Loader {
	return &Loader{find: resolver(resolve)}
}

// Library opens libdoca_common. It fails with status.NotSupported if that is not possible, and the
// error says what is missing and which package brings it. Later calls return the result of the
// first.
func (l *Loader) Library() (*Library, error) {
	l.once.Do(func() { l.library, l.err = load(l.find) })
	return l.library, l.err
}

// LogTo opens libdoca_common and calls Library.LogTo.
func (l *Loader) LogTo(descriptor int, level uint32) error {
	library, err := l.Library()
	if err != nil {
		return err
	}
	return library.LogTo(descriptor, level)
}

// Library is an open libdoca. It is never closed: libdoca cannot be unloaded.
type Library struct {
	find source

	mu      sync.Mutex // guards the rest and functions that nobody uses yet
	table   *C.struct_zcd_functions
	files   [len(partNames)]string
	loaded  [len(partNames)]bool
	failed  [len(partNames)]error
	devices []*Device // open
}

func load(find source) (*Library, error) {
	l := &Library{find: find,
		table: (*C.struct_zcd_functions)(C.calloc(1, C.sizeof_struct_zcd_functions))}
	if err := l.need(common); err != nil {
		C.free(unsafe.Pointer(l.table))
		return nil, err
	}
	return l, nil
}

// NeedComch opens libdoca_comch. It fails with status.NotSupported if that is not possible or the
// release is older than 2.9.
func (l *Library) NeedComch() error { return l.need(comch) }

// NeedDMA opens libdoca_dma. It fails with status.NotSupported if that is not possible.
func (l *Library) NeedDMA() error { return l.need(dma) }

// NeedRDMA opens libdoca_rdma. It fails with status.NotSupported if that is not possible.
func (l *Library) NeedRDMA() error { return l.need(rdma) }

// need opens a part once. Nothing uses the functions of a part before need has returned nil for it.
func (l *Library) need(p part) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.loaded[p] {
		l.loaded[p] = true
		l.failed[p] = l.open(p)
	}
	return l.failed[p]
}

// Version returns the version that the library reports, for instance "2.10.0087", or the name of
// its file. It is for messages; nothing is decided by it.
func (l *Library) Version() string {
	if version := C.zcd_version(l.table); version != nil {
		return C.GoString(version)
	}
	return l.files[common]
}

// LogTo makes libdoca write its own log messages up to a level (10 disabled, 20 critical, 30 error,
// 40 warning, 50 info, 60 debug, 70 trace) to a descriptor. It fails with status.NotSupported if
// the release cannot. Call it at most once: each call adds another log.
func (l *Library) LogTo(descriptor int, level uint32) error {
	return l.failure("log DOCA messages", C.zcd_log(l.table, C.int(descriptor), C.uint32_t(level)))
}

// failure converts the result of a DOCA function. It returns nil for DOCA_SUCCESS.
func (l *Library) failure(what string, code C.doca_error_t) error {
	if code == C.DOCA_SUCCESS {
		return nil
	}
	text := "unknown error"
	if description := C.zcd_describe(l.table, code); description != nil {
		text = C.GoString(description)
	}
	known := status.Code(code)
	if !known.Known() {
		known = status.Driver
	}
	return status.Errorf(known, "%s: DOCA error %d: %s", what, uint32(code), text)
}
