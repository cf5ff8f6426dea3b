// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca

// #include <stdlib.h>
// #include "skin.h"
import "C"

import (
	"unsafe"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// core is what a context does. The thread of its engine calls it.
type core interface {
	// start returns Success or InProgress, or why the context stays idle.
	start() (status.Code, error)
	// stop completes all tasks that the core has. It returns Success if that was all, InProgress if
	// the core will call engine.finish later, and InUse if the context cannot stop.
	stop() status.Code
	// flush takes the tasks that have been submitted. With Again, the last one stays.
	flush() status.Code
	// end releases everything; the context is idle.
	end()
}

var cores table[core]

//export emuStartContext
func emuStartContext(ctx *C.struct_doca_ctx) C.int {
	e := engines.get(ctx.pe.core)
	var c core
	switch ctx.kind {
	case C.EMU_CTX_DMA:
		c = &dmaCore{engine: e, ctx: ctx}
	case C.EMU_CTX_SERVER:
		c = &serverCore{controlCore: newControl(e, ctx)}
	case C.EMU_CTX_CLIENT:
		c = &clientCore{controlCore: newControl(e, ctx)}
	case C.EMU_CTX_CONSUMER:
		c = newConsumer(e, ctx)
	case C.EMU_CTX_PRODUCER:
		c = newProducer(e, ctx)
	case C.EMU_CTX_RDMA:
		c = newRDMA(e, ctx)
	case C.EMU_CTX_SYNC_EVENT:
		c = &eventCore{engine: e, ctx: ctx}
	default:
		return C.DOCA_ERROR_NOT_SUPPORTED
	}
	code, err := c.start()
	if err != nil {
		return failed("start "+C.GoString(ctx.ops.name), err)
	}
	ctx.core = cores.add(&c)
	return C.int(code)
}

//export emuStopContext
func emuStopContext(ctx *C.struct_doca_ctx) C.int {
	return C.int((*cores.get(ctx.core)).stop())
}

//export emuEndContext
func emuEndContext(ctx *C.struct_doca_ctx) {
	c := *cores.get(ctx.core)
	cores.remove(ctx.core)
	ctx.core = 0
	c.end()
}

//export emuFlush
func emuFlush(number C.uint32_t) C.int { return C.int((*cores.get(number)).flush()) }

// takeSubmitted takes the first of the tasks that have been submitted to a context, or nil.
func takeSubmitted(ctx *C.struct_doca_ctx) *C.struct_doca_task {
	task := ctx.submitted
	if task == nil {
		return nil
	}
	ctx.submitted = task.next
	if ctx.submitted == nil {
		ctx.submitted_last = nil
	}
	task.next = nil
	return task
}

// failed logs an error, as the library does in its own log, and returns its code.
func failed(operation string, err error) C.int {
	text := C.CString(operation + ": " + err.Error())
	C.emu_log_error(text)
	C.free(unsafe.Pointer(text))
	return C.int(status.CodeOf(err))
}
