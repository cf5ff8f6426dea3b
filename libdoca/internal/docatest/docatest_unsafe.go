// SPDX-License-Identifier: Apache-2.0

//go:build cgo

// Package docatest calls libdoca as a C program would, for the tests of the library: functions by
// their names, with callbacks in C that record what they were told.
package docatest

// #cgo CFLAGS: -std=gnu11 -Wall -Wextra -Wno-unused-parameter -I${SRCDIR}/../../include
// #include <stdlib.h>
// #include <string.h>
// #include "call.h"
import "C"

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// P is a pointer to an object of the library.
type P = unsafe.Pointer

// Kind is a kind of event.
type Kind int

// The kinds of events, which are also names of callbacks: see Callback.
const (
	Completed       Kind = C.DOCATEST_COMPLETED
	Failed          Kind = C.DOCATEST_FAILED
	State           Kind = C.DOCATEST_STATE
	Connected       Kind = C.DOCATEST_CONNECTED
	Disconnected    Kind = C.DOCATEST_DISCONNECTED
	Message         Kind = C.DOCATEST_MESSAGE
	ConsumerNew     Kind = C.DOCATEST_CONSUMER_NEW
	ConsumerExpired Kind = C.DOCATEST_CONSUMER_EXPIRED
	Freed           Kind = C.DOCATEST_FREED
)

// Event is one call of a callback.
type Event struct {
	Kind Kind
	// Object is the task, the context (State), the connection, or the address of memory (Freed).
	Object P
	// A and B are the callback's numbers: the user data of the task and of the context, or the
	// previous and the next state. In events of connections, A is whether the change succeeded, the
	// length of a message, or the ID of a consumer, and B is 1 if there was an event object. For
	// Freed, they are the length of the memory, and what the application has attached.
	A, B uint64
	// UserData is that of the context, for State.
	UserData uint64
	Data     []byte // of a message
}

var (
	mu     sync.Mutex
	events []Event
	hook   func(Event)
)

//export docatestEvent
func docatestEvent(kind C.int, object P, a, b C.uint64_t, data *C.uint8_t, n C.uint64_t) {
	e := Event{Kind: Kind(kind), Object: object, A: uint64(a), B: uint64(b)}
	if data != nil {
		e.Data = C.GoBytes(P(data), C.int(n))
	} else {
		e.UserData = uint64(n)
	}
	mu.Lock()
	events = append(events, e)
	f := hook
	mu.Unlock()
	if f != nil {
		f(e)
	}
}

// Take returns the events since the last call, and forgets them.
func Take() []Event {
	mu.Lock()
	defer mu.Unlock()
	taken := events
	events = nil
	return taken
}

// OnEvent makes the callbacks call f, too, on their own thread. nil ends that.
func OnEvent(f func(Event)) {
	mu.Lock()
	defer mu.Unlock()
	hook = f
}

// Callback returns the C function that records a kind of event. Its type is that of the DOCA
// callback of this kind; Completed and Failed fit tasks of all kinds.
func Callback(kind Kind) P { return C.docatest_callback(C.int(kind)) }

// ProviderFunctions returns the names of the functions that the DOCA providers cannot do without,
// and of those that they use if the release has them.
func ProviderFunctions() (required, optional []string) {
	var count C.int
	functions := C.docatest_provider_functions(&count)
	for _, f := range unsafe.Slice(functions, count) {
		if name := C.GoString(f.name); f.required != 0 {
			required = append(required, name)
		} else {
			optional = append(optional, name)
		}
	}
	return required, optional
}

// Raw calls a function of the library and returns what it returns. An argument is a pointer, an
// integer, or a string. The call panics if the release has no such function.
func Raw(name string, arguments ...any) uint64 {
	function := libdoca.Lookup(name)
	if function == nil {
		panic("the release has no " + name)
	}
	var a [C.DOCATEST_ARGUMENTS]C.uint64_t
	for i, argument := range arguments {
		switch v := argument.(type) {
		case nil:
		case P:
			a[i] = C.uint64_t(uintptr(v))
		case *Cell:
			a[i] = C.uint64_t(uintptr(P(v)))
		case int:
			a[i] = C.uint64_t(v)
		case uint32:
			a[i] = C.uint64_t(v)
		case uint64:
			a[i] = C.uint64_t(v)
		case string:
			text := C.CString(v)
			defer C.free(P(text))
			a[i] = C.uint64_t(uintptr(P(text)))
		default:
			panic(fmt.Sprintf("argument %d of %s has type %T", i, name, argument))
		}
	}
	return uint64(C.docatest_call(function, &a[0]))
}

// Call calls a function that returns doca_error_t.
func Call(name string, arguments ...any) status.Code {
	return status.Code(uint32(Raw(name, arguments...)))
}

// Pointer calls a function that returns a pointer.
func Pointer(name string, arguments ...any) P {
	address := uintptr(Raw(name, arguments...))
	return *(*P)(P(&address))
}

// Progress calls doca_pe_progress.
func Progress(pe P) bool { return uint8(Raw("doca_pe_progress", pe)) == 1 }

// Cell is eight bytes of C memory, for results.
type Cell C.uint64_t

// NewCell allocates a cell.
func NewCell() *Cell { return (*Cell)(C.calloc(1, 8)) }

// Free frees the cell.
func (c *Cell) Free() { C.free(P(c)) }

// Result returns what the cell holds.
func (c *Cell) Result() *Result { return &Result{value: uint64(*c)} }

// Get calls a function whose last argument is where it stores a result, and returns both.
func Get(name string, arguments ...any) (*Result, status.Code) {
	cell := NewCell()
	defer cell.Free()
	code := Call(name, append(append([]any(nil), arguments...), cell)...)
	return cell.Result(), code
}

// Result is what a function stored.
type Result struct{ value uint64 }

// Pointer returns the result as a pointer.
func (r *Result) Pointer() P { return *(*P)(P(&r.value)) }

// Uint64 returns the result as a number of eight bytes.
func (r *Result) Uint64() uint64 { return r.value }

// Uint32 returns the result as a number of four bytes.
func (r *Result) Uint32() uint32 { return uint32(r.value) }

// Uint16 returns the result as a number of two bytes.
func (r *Result) Uint16() uint16 { return uint16(r.value) }

// Uint8 returns the result as a number of one byte.
func (r *Result) Uint8() uint8 { return uint8(r.value) }

// Text calls a function that stores a string of up to size bytes. If withSize is set, the size is
// its last argument.
func Text(name string, object P, size int, withSize bool) (string, status.Code) {
	buffer := C.calloc(1, C.size_t(size))
	defer C.free(buffer)
	arguments := []any{object, buffer}
	if withSize {
		arguments = append(arguments, size)
	}
	code := Call(name, arguments...)
	return C.GoString((*C.char)(buffer)), code
}

// StringOf returns the string that a pointer of C points to.
func StringOf(p P) string { return C.GoString((*C.char)(p)) }

// Alloc allocates size bytes of C memory, aligned to a page.
func Alloc(size int) P {
	var p P
	if C.posix_memalign(&p, 4096, C.size_t(size)) != 0 {
		panic("out of memory")
	}
	C.memset(p, 0, C.size_t(size))
	return p
}

// Free frees what Alloc returned.
func Free(p P) { C.free(p) }

// Bytes returns C memory as a slice.
func Bytes(p P, n int) []byte { return unsafe.Slice((*byte)(p), n) }

// At returns the address of an array's entry, or of a byte, n bytes behind p.
func At(p P, n int) P { return unsafe.Add(p, n) }

// Load returns the pointer that is stored at p.
func Load(p P) P { return *(*P)(p) }

// Count returns a C function that counts completions, for Loop.
func Count() P { return C.docatest_count() }

func prepareLoop() {
	C.docatest_loop_functions(libdoca.Lookup("doca_task_submit_ex"),
		libdoca.Lookup("doca_pe_progress"), libdoca.Lookup("doca_buf_reset_data_len"))
}

// Loop sends rounds batches of messages: it submits all receives, submits all sends, and progresses
// both engines until Count has been called for all of them. It reports whether all submissions
// succeeded.
func Loop(producerPE, consumerPE P, sends, receives, bufs []P, rounds int) bool {
	prepareLoop()
	lists := (*[3]P)(C.calloc(3, 8))
	defer C.free(P(lists))
	for i, list := range [][]P{sends, receives, bufs} {
		lists[i] = C.calloc(C.size_t(len(list)), 8)
		defer C.free(lists[i])
		copy(unsafe.Slice((*P)(lists[i]), len(list)), list)
	}
	return C.docatest_loop(producerPE, consumerPE, (*P)(lists[0]), (*P)(lists[1]), (*P)(lists[2]),
		C.int(len(sends)), C.uint64_t(rounds)) == 0
}

// LoopEmpty calls doca_pe_progress rounds times, and returns how often it did something.
func LoopEmpty(pe P, rounds int) int {
	prepareLoop()
	return int(C.docatest_loop_empty(pe, C.uint64_t(rounds)))
}
