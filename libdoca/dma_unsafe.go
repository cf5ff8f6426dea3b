// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca

// #include "skin.h"
import "C"

import (
	"unsafe"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// dmaBatch bounds the copies of one poll.
const dmaBatch = 16

// dmaCore copies for a DMA context, while its engine is progressed.
type dmaCore struct {
	engine *engine
	ctx    *C.struct_doca_ctx
	queue  []*C.struct_doca_task
	broken bool
}

func (d *dmaCore) start() (status.Code, error) {
	d.engine.add(d)
	return status.Success, nil
}

func (d *dmaCore) flush() status.Code {
	for task := takeSubmitted(d.ctx); task != nil; task = takeSubmitted(d.ctx) {
		if d.broken {
			d.engine.complete(task, status.Shutdown)
			continue
		}
		d.queue = append(d.queue, task)
	}
	if d.engine.c.armed {
		d.engine.ring()
	}
	return status.Success
}

func (d *dmaCore) poll() {
	n := min(len(d.queue), dmaBatch)
	for i, task := range d.queue[:n] {
		copied := (*C.struct_doca_dma_task_memcpy)(unsafe.Pointer(task))
		total := lengthOf(copied)
		if total == 0 {
			d.reject(i)
			return
		}
		d.engine.complete(task, copyTask(copied, total))
	}
	d.queue = append(d.queue[:0], d.queue[n:]...)
}

// reject fails a task that the device rejects. That ends the context, with all tasks behind it.
func (d *dmaCore) reject(at int) {
	d.engine.complete(d.queue[at], status.IOFailed)
	d.broken, d.queue = true, d.queue[at+1:]
	_ = d.stop() // nothing is left
	d.engine.enter(d.ctx, C.DOCA_CTX_STATE_STOPPING)
	d.engine.finish(d.ctx)
}

func (d *dmaCore) arm() bool { return len(d.queue) == 0 }

func (d *dmaCore) disarm() {}

func (d *dmaCore) stop() status.Code {
	for _, task := range d.queue {
		d.engine.complete(task, status.Shutdown)
	}
	d.queue = nil
	d.engine.remove(d)
	return status.Success
}

func (d *dmaCore) end() {}

// copyTask copies the windows of the source list, total bytes, to behind those of the destination
// list, which do not change if it fails.
func copyTask(task *C.struct_doca_dma_task_memcpy, total C.size_t) status.Code {
	dst, placed := task.dst, C.size_t(0)
	for src := task.src; src != nil; src = src.next {
		for offset := C.size_t(0); offset < src.data_len; {
			end := C.size_t(dst.data-dst.head) + dst.data_len + placed
			n := min(src.data_len-offset, dst.len-end)
			if n == 0 {
				dst, placed = dst.next, 0 // check_task has added up the room
				continue
			}
			err := copyMemory(dst.mmap, uintptr(dst.head)+uintptr(end), src.mmap,
				uintptr(src.data)+uintptr(offset), uintptr(n))
			if err != nil {
				failed("copy by DMA", err)
				return status.CodeOf(err)
			}
			placed += n
			offset += n
		}
	}
	for dst := task.dst; total > 0; dst = dst.next {
		n := min(total, dst.len-C.size_t(dst.data-dst.head)-dst.data_len)
		dst.data_len += n
		total -= n
	}
	return status.Success
}

// lengthOf returns the number of bytes to copy.
func lengthOf(task *C.struct_doca_dma_task_memcpy) (total C.size_t) {
	for src := task.src; src != nil; src = src.next {
		total += src.data_len
	}
	return total
}
