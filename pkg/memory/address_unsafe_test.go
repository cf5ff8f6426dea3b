package memory

import "unsafe"

func addressOf(r *Region) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(r.bytes))) }
