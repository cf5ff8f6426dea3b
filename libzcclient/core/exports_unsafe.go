// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package main

// #include "core.h"
import "C"

import (
	"unsafe"

	"github.com/zc-relay/zc-relay/internal/buildinfo"
)

// version is a text of C that is never freed.
var version = C.CString(buildinfo.Version())

//export zc_core_version
func zc_core_version() *C.char { return version }

//export zc_core_open
func zc_core_open(number C.uint32_t, description *C.char, terms *C.struct_zc_core_terms,
	why *C.struct_zc_core_error) C.int32_t {
	v, err := openVolume(uint32(number), C.GoString(description))
	if err != nil {
		return tell(why, err)
	}
	info := v.Info()
	*terms = C.struct_zc_core_terms{queues: C.uint32_t(len(v.queues)),
		depth: C.uint32_t(info.Depth), block_size: C.uint32_t(info.BlockSize),
		buffer_size: C.uint32_t(info.BufferSize)}
	return C.ZC_SUCCESS
}

// tell writes an error for the library, and returns its code.
func tell(why *C.struct_zc_core_error, err error) C.int32_t {
	code, number := codeOf(err)
	why.code, why.number = C.int32_t(code), C.int32_t(number)
	copyText(why.text[:], err.Error())
	return why.code
}

// copyText copies as much of a text as there is room for, and a zero.
func copyText(to []C.char, text string) {
	n := copy(unsafe.Slice((*byte)(unsafe.Pointer(&to[0])), len(to)-1), text)
	to[n] = 0
}

//export zc_core_info
func zc_core_info(number C.uint32_t, to *C.struct_zc_info) {
	v := volumes[number].Load()
	info := v.Info()
	*to = C.struct_zc_info{
		volume_size: C.uint64_t(info.Size), memory_size: C.uint64_t(len(v.Memory())),
		block_size: C.uint32_t(info.BlockSize), buffer_size: C.uint32_t(info.BufferSize),
		queues: C.uint32_t(len(v.queues)), depth: C.uint32_t(info.Depth),
		sessions_lost: C.uint32_t(v.Reconnections().Count),
	}
	for _, f := range []struct {
		isSet bool
		flag  C.uint32_t
	}{
		{info.ReadOnly, C.ZC_READ_ONLY}, {info.Exclusive, C.ZC_EXCLUSIVE},
		{info.CanTrim, C.ZC_CAN_DISCARD}, {info.CanWriteZeroes, C.ZC_CAN_WRITE_ZEROES},
		{info.CanFUA, C.ZC_CAN_FUA},
	} {
		if f.isSet {
			to.flags |= f.flag
		}
	}
	for i, b := range info.UUID {
		to.uuid[i] = C.uint8_t(b)
	}
	copyText(to.name[:], info.Name)
	copyText(to.transport[:], info.Transport)
}

//export zc_core_check
func zc_core_check(number C.uint32_t, why *C.struct_zc_core_error) C.int32_t {
	if err := volumes[number].Load().Err(); err != nil {
		return tell(why, err)
	}
	return C.ZC_SUCCESS
}

//export zc_core_close
func zc_core_close(number C.uint32_t, why *C.struct_zc_core_error) C.int32_t {
	if err := closeVolume(uint32(number)); err != nil {
		return tell(why, err)
	}
	return C.ZC_SUCCESS
}

//export zc_core_memory
func zc_core_memory(number C.uint32_t, isSwitched C.int32_t, length *C.uint64_t) unsafe.Pointer {
	q := queueAt(uint32(number)).queue
	memory := q.Memory()
	if isSwitched != 0 {
		memory = q.SwitchMemory()
	}
	*length = C.uint64_t(len(memory))
	return unsafe.Pointer(unsafe.SliceData(memory))
}

//export zc_core_turn
func zc_core_turn(number C.uint32_t, t *C.struct_zc_core_turn) C.uint32_t {
	return C.uint32_t(queueAt(uint32(number)).turn(t))
}

//export zc_core_descriptor
func zc_core_descriptor(number C.uint32_t, why *C.struct_zc_core_error) C.int32_t {
	descriptor, err := queueAt(uint32(number)).descriptor()
	if err != nil {
		return tell(why, err)
	}
	return C.int32_t(descriptor)
}

//export zc_core_arm
func zc_core_arm(number C.uint32_t, t *C.struct_zc_core_turn) C.int32_t {
	if queueAt(uint32(number)).arm(t) {
		return 1
	}
	return 0
}
