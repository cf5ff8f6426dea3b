// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// descriptors holds the descriptors of one frame. A handler takes what it needs; the rest is
// closed.
type descriptors struct{ list []int }

// next removes and returns the next descriptor, or returns -1 and false if there is none. The
// caller owns it.
func (d *descriptors) next() (int, bool) {
	if len(d.list) == 0 {
		return -1, false
	}
	first := d.list[0]
	d.list = d.list[1:]
	return first, true
}

func (d *descriptors) add(descriptor int) { d.list = append(d.list, descriptor) }

// closeAll closes the remaining descriptors, which must be this side's own.
func (d *descriptors) closeAll() {
	for _, descriptor := range d.list {
		closeDescriptor(descriptor)
	}
	d.list = nil
}

// closeDescriptor closes a descriptor unless it is negative. It ignores errors: the descriptor is
// closed in any case, and no data is written to such files.
func closeDescriptor(descriptor int) {
	if descriptor >= 0 {
		_ = unix.Close(descriptor)
	}
}

// duplicate returns another descriptor of the same open file.
func duplicate(descriptor int) (int, error) {
	dup, err := unix.FcntlInt(uintptr(descriptor), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("duplicate descriptor %d: %w", descriptor, err)
	}
	return dup, nil
}
