// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca

// #include <stdlib.h>
// #include "skin.h"
import "C"

import (
	"embed"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"unsafe"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Fault makes calls of a function, or tasks of a type, fail without any other effect.
type Fault struct {
	// Function is the name of a function that returns doca_error_t, for instance
	// "doca_mmap_export_pci". Task is the name of a task's type, for instance
	// "doca_dma_task_memcpy": such a task is submitted with success, and then completes with Error.
	// One of them is set.
	Function, Task string
	Error          status.Code
	// Every says that the Every-th call or submission fails, and each Every-th from then on. 0
	// means 1: all fail.
	Every uint32
}

// maxFaults bounds Config.Faults.
const maxFaults = 256

//go:embed include/*.h
var headers embed.FS

var errorPrototype = regexp.MustCompile(`(?m)^doca_error_t\s+(doca_\w+)\s*\(`)

// returnsError holds the functions that return doca_error_t.
var returnsError = sync.OnceValue(func() map[string]bool {
	names := make(map[string]bool)
	entries, _ := headers.ReadDir("include") // it is in the program
	for _, entry := range entries {
		text, _ := headers.ReadFile("include/" + entry.Name())
		for _, match := range errorPrototype.FindAllSubmatch(text, -1) {
			names[string(match[1])] = true
		}
	}
	return names
})

// checkFaults returns why the emulation cannot make the faults happen.
func checkFaults(faults []Fault) error {
	if len(faults) > maxFaults {
		return status.Errorf(status.TooBig, "%d faults, of at most %d", len(faults), maxFaults)
	}
	names := make(map[string]bool)
	for i := range faults {
		f := &faults[i]
		if err := f.check(); err != nil {
			return fmt.Errorf("fault %d: %w", i+1, err)
		}
		if name := f.name(); names[name] {
			return status.Errorf(status.AlreadyExist, "fault %d: there is one of %s already", i+1,
				name)
		}
		names[f.name()] = true
	}
	return nil
}

// name returns the name of what fails. Functions and tasks have different names.
func (f *Fault) name() string { return f.Function + f.Task }

func (f *Fault) check() error {
	name := f.name()
	function, task := C.CString(f.Function), C.CString(f.Task)
	defer C.free(unsafe.Pointer(function))
	defer C.free(unsafe.Pointer(task))
	_, isFunction := functions[f.Function]
	switch {
	case (f.Function == "") == (f.Task == ""):
		return status.Errorf(status.InvalidValue, "a fault is of a function or of a task: "+
			"set one of both")
	case bool(C.emu_has_task(function)):
		return status.Errorf(status.InvalidValue, "%s is a type of task: say so by \"task\"", name)
	case f.Function != "" && (!isFunction || !returnsError()[f.Function]):
		return status.Errorf(status.InvalidValue, "%s is no function of the emulation that returns "+
			"doca_error_t", name)
	case f.Task != "" && !bool(C.emu_has_task(task)):
		return status.Errorf(status.InvalidValue, "%s is no type of task of the emulation: "+
			"docs/guides/libdoca.md lists them", name)
	case f.Error == status.Success || f.Error >= firstOwnCode:
		return status.Errorf(status.InvalidValue, "%s: %v is no error of DOCA", name, f.Error)
	}
	return nil
}

// firstOwnCode is the first code that DOCA does not have: see doca_error_get_name.
const firstOwnCode = 32

// replaceFaults makes the functions of faults fail, and those of the former configuration no more.
// It returns what the settings hold of that.
func replaceFaults(faults []Fault) *C.struct_emu_fault {
	for _, f := range functions {
		*f.faulty = 0
	}
	for _, former := range unsafe.Slice(C.emu_settings.faults, C.emu_settings.num_faults) {
		C.free(unsafe.Pointer(former.name))
	}
	C.free(unsafe.Pointer(C.emu_settings.faults))
	memory := (*C.struct_emu_fault)(C.calloc(C.size_t(len(faults)+1), C.sizeof_struct_emu_fault))
	for i, f := range unsafe.Slice(memory, len(faults)) {
		f = C.struct_emu_fault{name: C.CString(faults[i].name()),
			error: C.doca_error_t(faults[i].Error), every: C.uint32_t(max(faults[i].Every, 1))}
		if faults[i].Function != "" {
			f.faulty = (*C.uint8_t)(functions[faults[i].Function].faulty)
			*f.faulty = 1
		}
		unsafe.Slice(memory, len(faults))[i] = f
	}
	return memory
}

// parseError returns the error of a name such as "NO_MEMORY" or "DOCA_ERROR_NO_MEMORY".
func parseError(name string) (status.Code, error) {
	if name == "" {
		return 0, status.Errorf(status.InvalidValue, "it has no error, such as NO_MEMORY")
	}
	for code := status.Success + 1; code < firstOwnCode; code++ {
		if code.String() == strings.TrimPrefix(name, "DOCA_ERROR_") {
			return code, nil
		}
	}
	return 0, status.Errorf(status.InvalidValue, "%q is no error of DOCA, such as NO_MEMORY", name)
}
