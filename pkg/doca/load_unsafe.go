// SPDX-License-Identifier: Apache-2.0

package doca

// #cgo LDFLAGS: -ldl
// #define _GNU_SOURCE
// #include <dlfcn.h>
// #include <stdlib.h>
// #include "shim.h"
//
// // zcd_dlopen is one call, because the error belongs to the thread.
// static void *zcd_dlopen(const char *path, int flags, const char **error)
// {
//	void *handle = dlopen(path, flags);
//
//	*error = handle ? NULL : dlerror();
//	return handle;
// }
//
// // zcd_file returns the file that a function was loaded from.
// static const char *zcd_file(void *function)
// {
//	Dl_info info;
//
//	return dladdr(function, &info) ? info.dli_fname : NULL;
// }
import "C"

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// source is where the functions of a Library come from.
type source interface {
	// open opens a part of libdoca.
	open(p part) (object, error)
}

// object is an open part of libdoca.
type object interface {
	// lookup returns the address of a function, or nil.
	lookup(name string) unsafe.Pointer
	// file returns the file that a function of the object comes from, "" if there is none.
	file(function unsafe.Pointer) string
}

// resolver is a source in this process.
type resolver func(name string) unsafe.Pointer

func (r resolver) open(part) (object, error)         { return r, nil }
func (r resolver) lookup(name string) unsafe.Pointer { return r(name) }
func (r resolver) file(unsafe.Pointer) string        { return "" }

// sharedObjects is the source of the libraries in these directories; nil means directories().
type sharedObjects []string

// Suffixes of the files, in the order in which they are tried. Releases up to 3.3 use the first.
var suffixes = []string{".so.2", ".so.3", ".so"}

// installed returns the directories that DOCA's packages install libraries in.
func installed() []string {
	machine := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	return []string{"/opt/mellanox/doca/lib/" + machine + "-linux-gnu", "/opt/mellanox/doca/lib64"}
}

// directories returns where to look, in order. "" is where the dynamic linker looks.
func directories() []string {
	var all []string
	for _, variable := range []string{"ZC_DOCA_LIB_PATH", "DOCA_SDK_LIB_PATH"} {
		for _, directory := range filepath.SplitList(os.Getenv(variable)) {
			if directory != "" {
				all = append(all, directory)
			}
		}
	}
	return append(append(all, ""), installed()...)
}

func (s sharedObjects) open(p part) (object, error) {
	if s == nil {
		s = directories()
	}
	flags := C.int(C.RTLD_NOW | C.RTLD_LOCAL)
	if p == common {
		flags = C.RTLD_NOW | C.RTLD_GLOBAL // the other parts need its symbols
	}
	var broken string
	for _, directory := range s {
		for _, suffix := range suffixes {
			path := filepath.Join(directory, partNames[p]+suffix)
			name := C.CString(path)
			var failure *C.char
			handle := C.zcd_dlopen(name, flags, &failure)
			C.free(unsafe.Pointer(name))
			if handle != nil {
				return sharedObject{handle}, nil
			}
			reason := C.GoString(failure)
			if broken == "" && !strings.HasPrefix(reason, path+": cannot open shared object file") {
				broken = reason
			}
		}
	}
	if broken != "" {
		return nil, status.Errorf(status.NotSupported, "%s cannot be loaded: %s", partNames[p],
			broken)
	}
	return nil, notInstalled{status.Errorf(status.NotSupported,
		"%s.so.2 not found (looked in %s): install %s, or set DOCA_SDK_LIB_PATH",
		partNames[p], s.describe(), partPackages[p])}
}

// notInstalled is the error of a part that is in no directory.
type notInstalled struct{ error }

func (e notInstalled) Unwrap() error { return e.error }

func (s sharedObjects) describe() string {
	all := slices.Clone(s)
	if i := slices.Index(all, ""); i >= 0 {
		all[i] = "the directories of ld.so"
	}
	return strings.Join(all, ", ")
}

type sharedObject struct{ handle unsafe.Pointer }

func (o sharedObject) lookup(name string) unsafe.Pointer {
	symbol := C.CString(name)
	defer C.free(unsafe.Pointer(symbol))
	return C.dlsym(o.handle, symbol)
}

func (o sharedObject) file(function unsafe.Pointer) string {
	name := C.zcd_file(function)
	if name == nil {
		return ""
	}
	path := C.GoString(name)
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}

// Functions that tell releases apart, because nothing tells the types of a function.
const (
	// Up to 2.6, Comch has other names.
	since27 = "doca_comch_server_create"
	// 2.7 has this event under another name, and other types in libdoca_rdma.
	since29 = "doca_comch_server_event_connection_status_changed_register"
)

// function is an entry of the table.
type function struct {
	name     string
	part     part
	required bool
}

// functions returns the entries of the table in order.
var functions = sync.OnceValue(func() []function {
	var all []function
	for _, f := range unsafe.Slice(C.zcd_functions_all(), C.zcd_functions_count) {
		all = append(all, function{C.GoString(f.name), part(f.library), f.required != 0})
	}
	return all
})

// open opens a part and fills its functions into the table. It decides whether the release is one
// that the provider supports.
func (l *Library) open(p part) error {
	opened, err := l.find.open(p)
	if err != nil {
		// Up to 2.6 there is no such library. The other parts of 2.9 have doca_task_submit_ex.
		isOld := l.table.task_submit_ex == nil
		if p == comch && isOld && errors.As(err, new(notInstalled)) {
			err = status.Errorf(status.NotSupported,
				"DOCA ≥ 2.9 is needed (found %s; it has no doca_comch_*): %w", l.Version(), err)
		}
		return err
	}
	if p == comch && opened.lookup(since27) == nil {
		return status.Errorf(status.NotSupported,
			"DOCA ≥ 2.9 is needed (found %s; it has no doca_comch_*)", l.Version())
	}
	if p == comch && opened.lookup(since29) == nil {
		return status.Errorf(status.NotSupported,
			"DOCA ≥ 2.9 is needed (found 2.7-style Comch)")
	}
	missing := ""
	for i, function := range functions() {
		if function.part != p {
			continue
		}
		address := opened.lookup(function.name)
		if address == nil {
			if function.required && missing == "" {
				missing = function.name
			}
			continue
		}
		if l.files[p] == "" {
			l.files[p] = opened.file(address)
		}
		C.zcd_functions_set(l.table, C.uint32_t(i), address)
	}
	if missing != "" {
		return status.Errorf(status.NotSupported,
			"symbol %s missing in %s: is the installation of DOCA complete?", missing,
			l.describeFile(p))
	}
	if p != common && release(l.files[p]) != release(l.files[common]) {
		return status.Errorf(status.NotSupported,
			"%s and %s are of different releases: remove one of them, or set DOCA_SDK_LIB_PATH",
			l.files[common], l.files[p])
	}
	return nil
}

func (l *Library) describeFile(p part) string {
	if l.files[p] == "" {
		return partNames[p]
	}
	return l.files[p]
}

// release returns the release in the name of a file: "2.10.0087" for libdoca_common.so.2.10.0087.
func release(file string) string {
	_, release, _ := strings.Cut(filepath.Base(file), ".so")
	return strings.TrimPrefix(release, ".")
}
