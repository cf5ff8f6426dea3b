// SPDX-License-Identifier: Apache-2.0

package doca

// #include <stdlib.h>
// #include "shim.h"
//
// static doca_error_t zcd_engine_close(struct zcd_engine *engine)
// { return engine->f->pe_destroy(engine->pe); }
import "C"

import (
	"unsafe"

	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// engine is a progress engine (doca_pe) with one context. It lives in C memory, because libdoca's
// callbacks find it there.
type engine struct {
	library *Library
	c       *C.struct_zcd_engine
}

// CanWait reports whether a thread can sleep until a context has work. libdoca needs
// doca_pe_set_event_mode for it, because an armed engine makes no outbound progress without.
func (l *Library) CanWait() bool { return l.table.pe_set_event_mode != nil }

func (l *Library) newEngine(wait bool) (engine, error) {
	e := engine{l, (*C.struct_zcd_engine)(C.calloc(1, C.sizeof_struct_zcd_engine))}
	flag := C.int(0)
	if wait {
		flag = 1
	}
	err := l.failure("create progress engine",
		C.zcd_engine_open(l.table, flag, e.c))
	if err != nil {
		C.free(unsafe.Pointer(e.c))
		return engine{}, err
	}
	return e, nil
}

// close destroys the engine. Its context must have been destroyed.
func (e engine) close() error {
	err := e.library.failure("destroy progress engine", C.zcd_engine_close(e.c))
	if err == nil {
		C.free(unsafe.Pointer(e.c))
	}
	return err
}

// Context is what the contexts of this package have in common: a doca_ctx, and the progress engine
// that is its own. Its methods belong to the thread that works with the context.
type Context struct {
	engine  engine
	name    string
	context *C.struct_zcd_context
}

// Descriptor returns a descriptor that is readable while the context is armed and has work, or
// progress.NoDescriptor if a thread cannot sleep on the context. libdoca owns it.
func (c *Context) Descriptor() int {
	if c.engine.c.descriptor < 0 {
		return progress.NoDescriptor
	}
	return int(c.engine.c.descriptor)
}

// State returns the context's state as of the last turn.
func (c *Context) State() progress.State {
	if state := progress.State(c.context.state); state <= progress.Stopping {
		return state
	}
	return progress.Stopping
}

// Failed returns the first error of an operation that was accepted and failed later, or nil.
func (c *Context) Failed() error {
	if c.context.failed == C.DOCA_SUCCESS {
		return nil
	}
	return c.engine.library.failure(c.name, C.doca_error_t(c.context.failed))
}

// HasFailed reports whether Failed returns an error.
func (c *Context) HasFailed() bool { return c.context.failed != C.DOCA_SUCCESS }

// Start starts the context, which is then Starting or Running.
func (c *Context) Start() error {
	return c.engine.library.failure("start "+c.name, C.zcd_context_start(c.context))
}

// Stop begins to stop the context. It is Idle once libdoca has given back all that was submitted,
// and tasks have been freed.
func (c *Context) Stop() error {
	return c.engine.library.failure("stop "+c.name, C.zcd_context_stop(c.context))
}

// Progress makes up to budget steps of progress, and returns how many there were.
func (c *Context) Progress(budget int) int {
	return int(C.zcd_context_progress(c.context, C.uint32_t(budget)))
}

// arm requests that Descriptor becomes readable at the next work, and reports whether there is
// none yet.
func (c *Context) arm() bool { return C.zcd_context_arm(c.context) == 0 }

// Clear takes back the request of Arm and makes Descriptor unreadable.
func (c *Context) Clear() { C.zcd_context_clear(c.context) }

// Revoke takes the context away from the thread that owns it: its turns do nothing any more. It
// reports whether no turn is in progress, and may be called again until then. After that the caller
// owns the context.
func (c *Context) Revoke() bool { return C.zcd_context_revoke(c.context) != 0 }

// check fails if n is not between 1 and limit.
func check(what string, n, limit int) error {
	if n < 1 || n > limit {
		return status.Errorf(status.InvalidValue, "%s: %d is not between 1 and %d", what, n, limit)
	}
	return nil
}
