//go:build ceph && cgo

package rbd

// #include "aio.h"
// #include <stdlib.h>
import "C"

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// notify makes librbd write to an eventfd when a request has completed.
func (i *image) notify(eventfd int) error {
	return errnoOf(C.rbd_set_image_notification(i.handle, C.int(eventfd), C.EVENT_TYPE_EVENTFD))
}

// start starts the request in a slot. If it fails, the request has not been accepted. librbd keeps
// a pointer to the buffer of a read, which must not be into Go's heap: if it is, the data takes a
// detour through a buffer of the slot.
func (i *image) start(number uint32, s *slot, r *volume.Request) error {
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
	err := errnoOf(C.zc_rbd_submit(i.handle, operation, C.uint64_t(r.Offset),
		C.uint64_t(r.Length), (*C.char)(buffer), C.uint64_t(number)))
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

// results receives the outcomes of requests.
type results struct{ list *C.struct_zc_result }

const resultsLength = 64

func newResults() results {
	return results{(*C.struct_zc_result)(C.calloc(resultsLength, C.sizeof_struct_zc_result))}
}

func (r results) free() { C.free(unsafe.Pointer(r.list)) }

// wait waits for completed requests, unless there are more already, and passes each to visit: its
// slot, and a number of bytes or a negative error number. It returns their number.
func (i *image) wait(eventfd int, more bool, r results, visit func(slot uint32, value int64)) int {
	cMore := C.int(0)
	if more {
		cMore = 1
	}
	n := int(C.zc_rbd_wait(i.handle, C.int(eventfd), cMore, r.list, resultsLength))
	for _, result := range unsafe.Slice(r.list, max(n, 0)) {
		visit(uint32(result.slot), int64(result.value))
	}
	return n
}

// ring writes to the eventfd, as librbd does.
func ring(eventfd int) {
	one := uint64(1)
	_, _ = unix.Write(eventfd, unsafe.Slice((*byte)(unsafe.Pointer(&one)), 8))
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
