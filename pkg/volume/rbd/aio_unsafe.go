// SPDX-License-Identifier: Apache-2.0

//go:build ceph && cgo

package rbd

// #include "aio.h"
// #include <stdlib.h>
import "C"

import (
	"runtime"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// start starts the request in a slot. If it fails, the request has not been accepted. librbd keeps
// a pointer to the buffer of a read, which must not be into Go's heap: if it is, the data takes a
// detour through a buffer of the slot.
func (i *image) start(s *slot, r *volume.Request) error {
	var operation uint32
	buffer := unsafe.Pointer(unsafe.SliceData(r.Buffer))
	switch r.Operation {
	case iomsg.OpRead:
		operation = C.ZC_READ
		if !memory.IsMapping(r.Buffer) {
			s.detour = C.malloc(C.size_t(max(r.Length, 1)))
			buffer = s.detour
		}
	case iomsg.OpWrite:
		operation = C.ZC_WRITE
	case iomsg.OpFlush:
		operation = C.ZC_FLUSH
	case iomsg.OpTrim:
		operation = C.ZC_DISCARD
	default:
		operation = C.ZC_WRITE_ZEROES_ALLOCATED
		if r.Deallocate {
			operation = C.ZC_WRITE_ZEROES
		}
	}
	s.request.Store(r)
	s.shared.collection = r.Collection().(*collection).shared
	err := errnoOf(C.zc_rbd_submit(i.handle, operation, C.uint64_t(r.Offset),
		C.uint64_t(r.Length), (*C.char)(buffer), s.shared))
	if err != nil {
		s.endDetour(nil)
	}
	return err
}

// endDetour copies what a read has left in the slot's own buffer, and frees that.
func (s *slot) endDetour(destination []byte) {
	if s.detour == nil {
		return
	}
	copy(destination, unsafe.Slice((*byte)(s.detour), len(destination)))
	C.free(s.detour)
	s.detour = nil
}

// collection is where the requests of one queue end. C's memory holds it, because librbd's threads
// write there.
type collection struct {
	driver *driver
	shared *C.struct_zc_collection
	ended  []uint32 // the slots of what Collect has taken, newest first
}

// NewCollection returns where the requests of one queue end.
func (d *driver) NewCollection(doorbell int) (volume.Collection, error) {
	shared := (*C.struct_zc_collection)(C.calloc(1, C.sizeof_struct_zc_collection))
	shared.doorbell = C.int32_t(doorbell)
	return &collection{driver: d, shared: shared}, nil
}

func (c *collection) newest() *uint32 { return (*uint32)(unsafe.Pointer(&c.shared.newest)) }
func (c *collection) armed() *uint32  { return (*uint32)(unsafe.Pointer(&c.shared.armed)) }

// Collect completes the requests that have ended, oldest first.
func (c *collection) Collect() {
	if atomic.LoadUint32(c.newest()) == 0 {
		return
	}
	slots := &c.driver.slots
	for next := atomic.SwapUint32(c.newest(), 0); next != 0; {
		c.ended = append(c.ended, next-1)
		next = uint32(slots.shared(next - 1).next)
	}
	for _, number := range slices.Backward(c.ended) {
		c.driver.finish(number, int64(slots.shared(number).value))
	}
	c.ended = c.ended[:0]
}

// Arm makes the next request that ends ring the doorbell, unless one has ended already.
func (c *collection) Arm() bool {
	atomic.StoreUint32(c.armed(), 1)
	if atomic.LoadUint32(c.newest()) == 0 {
		return true
	}
	c.Disarm()
	return false
}

// Disarm undoes Arm.
func (c *collection) Disarm() { atomic.StoreUint32(c.armed(), 0) }

// Close waits until no thread of librbd uses the doorbell any more.
func (c *collection) Close() {
	for atomic.LoadUint32((*uint32)(unsafe.Pointer(&c.shared.ending))) > 0 {
		runtime.Gosched() // ringing is one system call, so this is short
	}
	C.free(unsafe.Pointer(c.shared))
}

// ranges receives the parts of an image that have data.
type ranges struct{ list *C.struct_zc_range }

const rangesLength = 512

func newRanges() ranges {
	return ranges{(*C.struct_zc_range)(C.calloc(rangesLength, C.sizeof_struct_zc_range))}
}

func (r ranges) free() { C.free(unsafe.Pointer(r.list)) }

// findData returns the first parts of a range that have data, at most limit, and whether those are
// all. It blocks. It fails with EDOM if librbd does not find them in order.
func (i *image) findData(
	offset, length uint64, buffer ranges, limit int,
) (parts []part, complete bool, err error) {
	limit = min(limit, rangesLength)
	n := C.zc_rbd_find_data(i.handle, C.uint64_t(offset), C.uint64_t(length), buffer.list,
		C.int(limit))
	if err := errnoOf(n); err != nil {
		return nil, false, err
	}
	for _, found := range unsafe.Slice(buffer.list, n) {
		parts = append(parts, part{uint64(found.offset), uint64(found.length)})
	}
	return parts, len(parts) < limit, nil
}
