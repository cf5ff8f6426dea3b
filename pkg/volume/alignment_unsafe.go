package volume

import "unsafe"

// misalignment is how far a buffer lies behind the last multiple of alignment
// in memory. alignment is a power of two; 0 means none is asked for.
func misalignment(buffer []byte, alignment int) int {
	if alignment == 0 {
		return 0
	}
	return int(uintptr(unsafe.Pointer(unsafe.SliceData(buffer))) & uintptr(alignment-1))
}
