// SPDX-License-Identifier: Apache-2.0

//go:build ceph && cgo

package rbd

// #include "aio.h"
// #include <stdlib.h>
import "C"

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// slotTable numbers the requests in flight: librbd must not keep pointers to Go's memory. Threads
// claim and release slots without a lock.
type slotTable struct {
	mu       sync.Mutex // guards reserved and the creation of chunks
	reserved int
	capacity int

	chunks [maxChunks]atomic.Pointer[[chunkLength]slot]
	// firstFree is the first free slot, plus 1, in the lower half, and in the upper half the number
	// of changes so far, by which a thread notices that another one has been faster.
	firstFree atomic.Uint64
}

const (
	chunkLength = 1024
	maxChunks   = 256
)

// slot is the place of a request in flight.
type slot struct {
	// detour is the buffer of a read in C's memory, or nil if librbd fills the request's own.
	detour unsafe.Pointer
	// shared is the part that librbd knows, in C's memory.
	shared  *C.struct_zc_request
	request atomic.Pointer[volume.Request]
	next    atomic.Uint32 // the next free slot, plus 1
}

// reserve makes room for count more requests.
func (t *slotTable) reserve(count int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if count > maxChunks*chunkLength-t.reserved {
		return status.Errorf(status.NoMemory, "%d requests in flight, and %d more, exceed the "+
			"limit of %d for a volume", t.reserved, count, maxChunks*chunkLength)
	}
	for t.reserved += count; t.capacity < t.reserved; t.capacity += chunkLength {
		chunk := new([chunkLength]slot)
		shared := (*[chunkLength]C.struct_zc_request)(C.calloc(chunkLength,
			C.sizeof_struct_zc_request))
		t.chunks[t.capacity/chunkLength].Store(chunk)
		for i := range chunk {
			number := uint32(t.capacity + i)
			shared[i].number = C.uint32_t(number)
			chunk[i].shared = &shared[i]
			t.release(number)
		}
	}
	return nil
}

// unreserve takes back a reservation. The slots stay for the next one.
func (t *slotTable) unreserve(count int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reserved -= count
}

func (t *slotTable) at(number uint32) *slot {
	return &t.chunks[number/chunkLength].Load()[number%chunkLength]
}

// shared returns the part of a slot that librbd knows.
func (t *slotTable) shared(number uint32) *C.struct_zc_request { return t.at(number).shared }

// free releases C's memory. No request is in flight.
func (t *slotTable) free() {
	for i := range t.capacity / chunkLength {
		C.free(unsafe.Pointer(t.chunks[i].Load()[0].shared))
	}
}

// claim returns a free slot. There is one, because all requests have a reservation.
func (t *slotTable) claim() (uint32, *slot) {
	for {
		free := t.firstFree.Load()
		number := uint32(free) - 1
		s := t.at(number)
		next := (free>>32+1)<<32 | uint64(s.next.Load())
		if t.firstFree.CompareAndSwap(free, next) {
			return number, s
		}
	}
}

// release makes a slot free.
func (t *slotTable) release(number uint32) {
	s := t.at(number)
	s.request.Store(nil)
	for {
		free := t.firstFree.Load()
		s.next.Store(uint32(free))
		if t.firstFree.CompareAndSwap(free, (free>>32+1)<<32|uint64(number+1)) {
			return
		}
	}
}
