// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca

// #include "skin.h"
//
// struct emu_function {
//	const char *library, *name;
//	void *function;
//	int first;
//	uint8_t *faulty;
// };
//
// // The entries, which entries.c has.
// #define EMU_FUNCTION(library, name, first) \
//	extern void emu_entry_##name(void); \
//	extern uint8_t emu_faulty_##name;
// #include "functions.h"
// #undef EMU_FUNCTION
// #define EMU_FUNCTION(library, name, first) \
//	{#library, #name, (void *)emu_entry_##name, first, &emu_faulty_##name},
// static const struct emu_function emu_functions[] = {
// #include "functions.h"
// };
// #undef EMU_FUNCTION
//
// enum { EMU_FUNCTIONS = sizeof emu_functions / sizeof emu_functions[0] };
//
// static const struct emu_function *emu_function_at(int i) { return &emu_functions[i]; }
import "C"

import "unsafe"

// Function describes a function of the library.
type Function struct {
	// Library is the DOCA library that has the function: "common", "comch", or "dma".
	Library string
	Name    string
	// First is the release that brought it, Release2_6 for all that is as old.
	First   Release
	pointer unsafe.Pointer
	faulty  *C.uint8_t // what the function's entry looks at
}

// functions holds every function of the emulation by its name.
var functions = func() map[string]Function {
	all := make(map[string]Function, C.EMU_FUNCTIONS)
	for i := range C.int(C.EMU_FUNCTIONS) {
		f := C.emu_function_at(i)
		name := C.GoString(f.name)
		all[name] = Function{Library: C.GoString(f.library), Name: name,
			First: Release(f.first), pointer: f.function,
			faulty: f.faulty}
	}
	return all
}()

// Functions returns the functions of the emulation, in all releases, in no order.
func Functions() []Function {
	all := make([]Function, 0, len(functions))
	for _, f := range functions {
		all = append(all, f)
	}
	return all
}

// Lookup returns the C function with the given DOCA name, for instance "doca_pe_create", or nil if
// the configured release does not have it.
func Lookup(name string) unsafe.Pointer {
	f, ok := functions[name]
	if !ok || f.First > active.Load().Release {
		return nil
	}
	return f.pointer
}

// LookupIn is like Lookup, but returns nil unless the function belongs to the given library, for
// instance "comch".
func LookupIn(library, name string) unsafe.Pointer {
	if functions[name].Library != library {
		return nil
	}
	return Lookup(name)
}

// Objects returns how many objects of each kind exist, for instance {"mmap": 1}. A kind without
// objects is absent. Tests use it to find what an application has not destroyed.
func Objects() map[string]int {
	live := make(map[string]int)
	for magic := C.enum_emu_magic(C.EMU_DEVINFO); magic < C.EMU_LOG_BACKEND; magic++ {
		if n := C.emu_live(magic); n > 0 {
			live[C.GoString(C.emu_magic_name(magic))] = int(n)
		}
	}
	return live
}
