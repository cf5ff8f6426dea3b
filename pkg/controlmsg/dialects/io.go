// SPDX-License-Identifier: Apache-2.0

package dialects

import (
	"encoding/binary"
	"math"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
)

// Offsets in IO messages, which have 64 bytes in all versions. Up to byte 24 they are as in
// package iomsg.
const (
	offsetType    = 0
	offsetResult  = 16
	offsetAddress = 24 // 2.10 and 3.0: an address of the initiator; later an offset in its memory
	offsetStorage = 32 // 2.10: unused; 3.0: 32 bits; later an offset in the storage
	offsetUnused  = 40
)

// noType is a type that no protocol has.
const noType = 0xffffffff

// InitiatorTranslator translates an initiator's IO messages to and from the layout of package
// iomsg. It neither allocates nor keeps state.
type InitiatorTranslator struct {
	version Version
	base    uint64
}

// NewInitiatorTranslator returns a translator for an initiator whose exported memory starts at
// base, as the initiator knows it.
func NewInitiatorTranslator(v Version, base uint64) *InitiatorTranslator {
	return &InitiatorTranslator{version: v, base: base}
}

// FromClient turns a request of the initiator into one of package iomsg, in place. Fields that the
// version does not have may hold anything in the former, and are 0 in the latter. Types that it
// does not have become invalid.
func (t *InitiatorTranslator) FromClient(m []byte) {
	_ = m[iomsg.Size-1]
	switch iomsg.Type(binary.BigEndian.Uint32(m[offsetType:])) {
	case iomsg.Read, iomsg.Write:
	case iomsg.Stop:
		if t.version == DOCA2_10 {
			break
		}
		fallthrough
	default:
		binary.BigEndian.PutUint32(m[offsetType:], noType)
	}
	binary.BigEndian.PutUint32(m[offsetResult:], 0)
	clear(m[offsetUnused:iomsg.Size])
	address := binary.BigEndian.Uint64(m[offsetAddress:])
	switch t.version {
	case DOCA2_10:
		binary.BigEndian.PutUint64(m[offsetAddress:], address-t.base)
		binary.BigEndian.PutUint64(m[offsetStorage:], address-t.base)
	case DOCA3_0:
		shift := uint64(binary.BigEndian.Uint32(m[offsetStorage:]))
		binary.BigEndian.PutUint64(m[offsetAddress:], address-t.base+shift)
		binary.BigEndian.PutUint64(m[offsetStorage:], address-t.base)
	}
}

// ToClient undoes FromClient, but for the type and the result.
func (t *InitiatorTranslator) ToClient(m []byte) {
	_ = m[iomsg.Size-1]
	requester := binary.BigEndian.Uint64(m[offsetAddress:])
	storage := binary.BigEndian.Uint64(m[offsetStorage:])
	switch t.version {
	case DOCA2_10:
		binary.BigEndian.PutUint64(m[offsetAddress:], requester+t.base)
		binary.BigEndian.PutUint64(m[offsetStorage:], 0)
	case DOCA3_0:
		binary.BigEndian.PutUint64(m[offsetAddress:], storage+t.base)
		binary.BigEndian.PutUint64(m[offsetStorage:], 0)
		binary.BigEndian.PutUint32(m[offsetStorage:], uint32(requester-storage))
	}
}

// TargetTranslator translates requests for a target of the applications. Such targets return what
// they do not know as they got it, so their responses need no translation. It neither allocates nor
// keeps state.
type TargetTranslator struct {
	version Version
	base    uint64
}

// NewTargetTranslator returns a translator for a target that knows the initiator's memory as
// starting at base.
func NewTargetTranslator(v Version, base uint64) *TargetTranslator {
	return &TargetTranslator{version: v, base: base}
}

// CanCarry reports whether the version has a request of the type with these offsets: reads and
// writes only, in 3.0 only those whose place in the initiator's memory is at most 4 GiB behind that
// in the storage, and not before it, and in 2.10 only those with the same place in both.
func (t *TargetTranslator) CanCarry(
	ioType iomsg.Type, requesterOffset, storageOffset uint64,
) bool {
	if ioType != iomsg.Read && ioType != iomsg.Write {
		return false
	}
	switch t.version {
	case DOCA2_10:
		return requesterOffset == storageOffset
	case DOCA3_0:
		return requesterOffset >= storageOffset &&
			requesterOffset-storageOffset <= math.MaxUint32
	}
	return true
}

// ToTarget turns a request of package iomsg into one for the target, in place.
func (t *TargetTranslator) ToTarget(m []byte) {
	_ = m[iomsg.Size-1]
	requester := binary.BigEndian.Uint64(m[offsetAddress:])
	storage := binary.BigEndian.Uint64(m[offsetStorage:])
	switch t.version {
	case DOCA2_10:
		binary.BigEndian.PutUint64(m[offsetAddress:], t.base+storage)
		binary.BigEndian.PutUint64(m[offsetStorage:], 0)
	case DOCA3_0:
		binary.BigEndian.PutUint64(m[offsetAddress:], t.base+storage)
		binary.BigEndian.PutUint64(m[offsetStorage:], 0)
		binary.BigEndian.PutUint32(m[offsetStorage:], uint32(requester-storage))
	}
}

// TakesStop reports whether an IO message stops the target.
func (t *TargetTranslator) TakesStop() bool { return t.version == DOCA2_10 }
