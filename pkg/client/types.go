// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
)

// RequestType is what a Request does. The zero value is none of them.
type RequestType uint32

// The types of requests.
const (
	Read  = RequestType(iomsg.Read)
	Write = RequestType(iomsg.Write)
	// Flush makes all writes durable that completed before it was submitted, on any queue.
	Flush = RequestType(iomsg.Flush)
	// Trim discards the content of a range: what reads return afterwards is undefined.
	Trim = RequestType(iomsg.Trim)
	// WriteZeroes makes a range read as zeroes.
	WriteZeroes = RequestType(iomsg.WriteZeroes)
	// Extents describes a range by its data and holes: see DecodeExtents.
	Extents = RequestType(iomsg.Extents)
)

// Operation returns what the target's volume does, or iomsg.OpOther if t is none of the types
// above.
func (t RequestType) Operation() iomsg.Operation { return iomsg.Type(t).Operation() }

// IsValid reports whether t is one of the types above.
func (t RequestType) IsValid() bool { return t.Operation() != iomsg.OpOther }

// String returns the name, such as "write_zeroes".
func (t RequestType) String() string {
	if !t.IsValid() {
		return fmt.Sprintf("request type %d", uint32(t))
	}
	return t.Operation().String()
}

// Flags change what a Request does.
type Flags uint32

// The flags of requests.
const (
	// FUA (force unit access) makes a change durable before it completes, if Info.CanFUA is set.
	FUA = Flags(iomsg.FUA)
	// Deallocate lets WriteZeroes free the space of its range, where the volume can do that.
	Deallocate = Flags(iomsg.Deallocate)
)

// Extent is a range of a volume that is data, or a hole, which reads as zeroes.
type Extent = iomsg.Extent

// ExtentSize is the size of an Extent, in bytes, in the memory of a request of type Extents.
const ExtentSize = iomsg.ExtentSize

// DecodeExtents appends to extents those of the table that a request of type Extents has moved to
// memory. They describe at most length bytes, and at least one. It fails with status.Unexpected if
// the table, which comes from the target, describes nothing, or more than that.
func DecodeExtents(extents []Extent, table []byte, length uint64) ([]Extent, error) {
	return iomsg.DecodeExtents(extents, table, length)
}
