// SPDX-License-Identifier: Apache-2.0

package volume

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
)

// seeksPerEntry bounds how long a search for extents takes, if the file has many holes that are
// smaller than a block. The table then describes less than it has room for.
const seeksPerEntry = 4

// findExtents describes the range of a request by the extents of a file that begins with the
// volume. A block that is a hole only in part counts as data. The offset of the file changes.
func findExtents(fd int, r *Request) error {
	block := uint64(r.queue.info.BlockSize)
	room := len(r.Buffer) / iomsg.ExtentSize
	end := r.Offset + r.Length
	var extents []iomsg.Extent
	add := func(length uint64, flags iomsg.ExtentFlags) {
		if n := len(extents); n > 0 && extents[n-1].Flags == flags {
			extents[n-1].Length += length
			return
		}
		extents = append(extents, iomsg.Extent{Length: length, Flags: flags})
	}
	position := r.Offset
	for seeks := 0; position < end && len(extents) <= room && seeks < seeksPerEntry*room; seeks++ {
		data, err := unix.Seek(fd, int64(position), unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) { // there is none
			data, err = int64(end), nil
		}
		if err != nil {
			return err
		}
		if hole := min(uint64(data), end) &^ (block - 1); hole > position {
			add(hole-position, iomsg.Hole)
			position = hole
			continue
		}
		hole, err := unix.Seek(fd, data, unix.SEEK_HOLE)
		if errors.Is(err, unix.ENXIO) { // the data is gone
			hole, err = data, nil
		}
		if err != nil {
			return err
		}
		// At least a block: another program may have made a hole there meanwhile.
		next := min(max((uint64(hole)+block-1)&^(block-1), position+block), end)
		add(next-position, 0)
		position = next
	}
	iomsg.EncodeExtents(r.Buffer, extents)
	return nil
}

// canFindExtents reports whether the file can tell where its holes are. A device cannot.
func canFindExtents(fd int) bool {
	_, err := unix.Seek(fd, 0, unix.SEEK_DATA)
	return err == nil || errors.Is(err, unix.ENXIO)
}
