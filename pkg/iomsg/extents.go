// SPDX-License-Identifier: Apache-2.0

package iomsg

import (
	"encoding/binary"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// ExtentSize is the length of an entry in a table of extents, in bytes.
const ExtentSize = 16

// Byte offsets of the fields of an entry. Bytes 12-15 are zero.
const (
	offsetExtentLength = 0
	offsetExtentFlags  = 8
)

// Extent is a range of a volume whose blocks are in the same state. The data of an IO of type
// Extents is a table of them. The first begins at StorageOffset, each of the others at the end of
// the one before it. A length of 0 ends a table that is not full.
type Extent struct {
	// Length is in bytes, a multiple of the block size.
	Length uint64
	Flags  ExtentFlags
}

// ExtentFlags say what is known of an extent. Without any, it holds data.
type ExtentFlags uint32

// Hole means that the extent takes up no space and reads as zeroes.
const Hole ExtentFlags = 1 << 0

// IsHole reports whether the extent reads as zeroes and takes up no space.
func (e Extent) IsHole() bool { return e.Flags&Hole != 0 }

// EncodeExtents writes as many extents into table as it has room for, and clears the rest of it.
func EncodeExtents(table []byte, extents []Extent) {
	clear(table)
	for i := range min(len(extents), len(table)/ExtentSize) {
		entry := table[i*ExtentSize:][:ExtentSize]
		binary.BigEndian.PutUint64(entry[offsetExtentLength:], extents[i].Length)
		binary.BigEndian.PutUint32(entry[offsetExtentFlags:], uint32(extents[i].Flags))
	}
}

// DecodeExtents appends the extents of a table to extents. They describe at most length bytes, and
// at least one. It fails with status.Unexpected if the table describes nothing, or more than that.
// Unknown flags are dropped.
func DecodeExtents(extents []Extent, table []byte, length uint64) ([]Extent, error) {
	var described uint64
	for ; len(table) >= ExtentSize; table = table[ExtentSize:] {
		entry := [ExtentSize]byte(table) // read once: others may be able to change the table
		e := Extent{Length: binary.BigEndian.Uint64(entry[offsetExtentLength:]),
			Flags: ExtentFlags(binary.BigEndian.Uint32(entry[offsetExtentFlags:])) & Hole}
		if e.Length == 0 {
			break
		}
		if e.Length > length-described {
			return extents, status.Errorf(status.Unexpected,
				"the extents describe more than the %d bytes that were asked for", length)
		}
		described += e.Length
		extents = append(extents, e)
	}
	if described == 0 {
		return extents, status.Errorf(status.Unexpected, "the table of extents is empty")
	}
	return extents, nil
}
