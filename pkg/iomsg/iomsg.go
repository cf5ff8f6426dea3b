// SPDX-License-Identifier: Apache-2.0

// Package iomsg encodes the 64-byte IO message that travels from the initiator through the relay to
// the target and back.
//
// The layout is the one that the DOCA storage applications have used since 3.2: big-endian, one
// cache line. The native protocol adds fields in bytes that those applications leave unused. See
// docs/dev/protocol.md.
package iomsg

import (
	"encoding/binary"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// Size is the length of every IO message in bytes.
const Size = 64

// Byte offsets of the fields.
const (
	offsetType            = 0
	offsetTrace           = 4
	offsetUserData        = 8
	offsetResult          = 16
	offsetIOSize          = 20
	offsetRequesterOffset = 24
	offsetStorageOffset   = 32
	offsetSlot            = 40
	offsetGeneration      = 44
	offsetFlags           = 48
	offsetCause           = 52
	offsetRange           = 56
)

// Type is what an IO message requests, or Result in a response.
type Type uint32

// Types 0 to 3 come from the DOCA storage applications; the others are native. Hello is the first
// message on every RDMA connection.
const (
	Result      Type = 0
	Read        Type = 1
	Write       Type = 2
	Stop        Type = 3
	Hello       Type = 4
	Flush       Type = 16
	Trim        Type = 17
	WriteZeroes Type = 18
	Extents     Type = 19
)

// String returns the lower-case name used in metrics and messages.
func (t Type) String() string {
	switch t {
	case Result:
		return "result"
	case Stop:
		return "stop"
	case Hello:
		return "hello"
	}
	if operation := t.Operation(); operation != OpOther {
		return operation.String()
	}
	return "unknown"
}

// IsRequest reports whether t is an IO that a client may request.
func (t Type) IsRequest() bool { return t.Operation() != OpOther }

// Operation is what an IO does. Unlike Type, it has no values that only the protocol needs, and is
// dense, so it can index tables.
type Operation uint8

// OpOther stands for all types that are not an IO.
const (
	OpOther Operation = iota
	OpRead
	OpWrite
	OpFlush
	OpTrim
	OpWriteZeroes
	OpExtents
	OperationCount
)

// Operation returns what an IO of this type does, or OpOther if t is not an IO.
func (t Type) Operation() Operation {
	switch t {
	case Read:
		return OpRead
	case Write:
		return OpWrite
	case Flush:
		return OpFlush
	case Trim:
		return OpTrim
	case WriteZeroes:
		return OpWriteZeroes
	case Extents:
		return OpExtents
	}
	return OpOther
}

// String returns the operation's label in metrics, which is also the name of its Type.
func (o Operation) String() string {
	switch o {
	case OpRead:
		return "read"
	case OpWrite:
		return "write"
	case OpFlush:
		return "flush"
	case OpTrim:
		return "trim"
	case OpWriteZeroes:
		return "write_zeroes"
	case OpExtents:
		return "extents"
	}
	return "other"
}

// MovesData reports whether the operation transfers data from or to the requester's memory.
func (o Operation) MovesData() bool { return o == OpWrite || o.FillsMemory() }

// FillsMemory reports whether the operation transfers data to the requester's memory.
func (o Operation) FillsMemory() bool { return o == OpRead || o == OpExtents }

// HasRange reports whether the operation covers a range of the volume.
func (o Operation) HasRange() bool { return o != OpFlush && o != OpOther }

// Changes reports whether the operation changes the content of a volume.
func (o Operation) Changes() bool { return o == OpWrite || o == OpTrim || o == OpWriteZeroes }

// Connection returns the connection that carries the operation in both directions. Requests and
// responses on one connection carry each other's acknowledgements, which on TCP would otherwise be
// separate packets.
func (o Operation) Connection() ConnectionRole {
	if o.MovesData() {
		return DataConnection
	}
	return ControlConnection
}

// ConnectionRole distinguishes the two RDMA connections of a lane.
type ConnectionRole uint8

// Requests that move data use the data connection, as does their data. Everything else uses the
// control connection.
const (
	ControlConnection ConnectionRole = iota
	DataConnection
	ConnectionRoleCount
)

// String returns the lower-case name.
func (r ConnectionRole) String() string {
	switch r {
	case ControlConnection:
		return "control"
	case DataConnection:
		return "data"
	}
	return "invalid"
}

// Flags modify a request.
type Flags uint32

const (
	// FUA (force unit access) makes a write durable before it completes.
	FUA Flags = 1 << 0
	// Pushed means that the relay has written the data of a write into the slot's staging buffer on
	// the target, ahead of the request.
	Pushed Flags = 1 << 1
	// Deallocate lets a write of zeroes free the space of its range, which needs space again when
	// it is written. Without it, the range stays allocated where the volume can do that.
	Deallocate Flags = 1 << 2
	// Traced means that Message.Trace is the ID of a trace.
	Traced Flags = 1 << 3
)

const (
	// ClientFlags are the flags allowed in a client's request.
	ClientFlags = FUA | Deallocate | Traced
	// KnownFlags are the flags allowed in a relay's request.
	KnownFlags = ClientFlags | Pushed
)

// Message is a decoded IO message.
type Message struct {
	Type Type
	// Trace identifies a request with the flag Traced, in all of its messages; it is not 0. In
	// others it is echoed but never interpreted: the transaction index of DOCA 3.0 and 3.1.
	Trace uint32
	// UserData belongs to the client and is returned in the response.
	UserData uint64
	// Result is the outcome in a response, 0 in a request.
	Result status.Code
	// IOSize is the length of the IO in bytes. For Extents it is the size of the table.
	IOSize uint32
	// RequesterOffset is the offset of the data in the client's exported region, in bytes.
	RequesterOffset uint64
	// StorageOffset is the offset of the data in the volume, in bytes.
	StorageOffset uint64
	// Slot and Generation are the relay's tag; they are 0 in messages from the client.
	Slot       uint32
	Generation uint32
	Flags      Flags
	// Cause says why a volume has failed the request, in a response with a result other than
	// success.
	Cause status.Cause
	// Range is how many bytes of the volume Extents describes. Other types ignore it.
	Range uint64
}

// Encode writes m into the first Size bytes of buf, all of which it sets.
func Encode(buf []byte, m *Message) {
	_ = buf[Size-1]
	binary.BigEndian.PutUint32(buf[offsetType:], uint32(m.Type))
	binary.BigEndian.PutUint32(buf[offsetTrace:], m.Trace)
	binary.BigEndian.PutUint64(buf[offsetUserData:], m.UserData)
	binary.BigEndian.PutUint32(buf[offsetResult:], uint32(m.Result))
	binary.BigEndian.PutUint32(buf[offsetIOSize:], m.IOSize)
	binary.BigEndian.PutUint64(buf[offsetRequesterOffset:], m.RequesterOffset)
	binary.BigEndian.PutUint64(buf[offsetStorageOffset:], m.StorageOffset)
	binary.BigEndian.PutUint32(buf[offsetSlot:], m.Slot)
	binary.BigEndian.PutUint32(buf[offsetGeneration:], m.Generation)
	binary.BigEndian.PutUint32(buf[offsetFlags:], uint32(m.Flags))
	binary.BigEndian.PutUint32(buf[offsetCause:], uint32(m.Cause))
	binary.BigEndian.PutUint64(buf[offsetRange:], m.Range)
}

// Decode reads the first Size bytes of buf. Every bit pattern decodes: the receiver has to check
// the fields.
func Decode(buf []byte, m *Message) {
	_ = buf[Size-1]
	m.Type = Type(binary.BigEndian.Uint32(buf[offsetType:]))
	m.Trace = binary.BigEndian.Uint32(buf[offsetTrace:])
	m.UserData = binary.BigEndian.Uint64(buf[offsetUserData:])
	m.Result = status.Code(binary.BigEndian.Uint32(buf[offsetResult:]))
	m.IOSize = binary.BigEndian.Uint32(buf[offsetIOSize:])
	m.RequesterOffset = binary.BigEndian.Uint64(buf[offsetRequesterOffset:])
	m.StorageOffset = binary.BigEndian.Uint64(buf[offsetStorageOffset:])
	m.Slot = binary.BigEndian.Uint32(buf[offsetSlot:])
	m.Generation = binary.BigEndian.Uint32(buf[offsetGeneration:])
	m.Flags = Flags(binary.BigEndian.Uint32(buf[offsetFlags:]))
	m.Cause = status.Cause(binary.BigEndian.Uint32(buf[offsetCause:]))
	m.Range = binary.BigEndian.Uint64(buf[offsetRange:])
}

// StampTag writes the relay's tag into an encoded message.
func StampTag(buf []byte, slot, generation uint32) {
	_ = buf[Size-1]
	binary.BigEndian.PutUint32(buf[offsetSlot:], slot)
	binary.BigEndian.PutUint32(buf[offsetGeneration:], generation)
}

// RequesterOffset returns the requester offset of an encoded message.
func RequesterOffset(buf []byte) uint64 {
	_ = buf[Size-1]
	return binary.BigEndian.Uint64(buf[offsetRequesterOffset:])
}

// SetRequesterOffset replaces the requester offset of an encoded message.
func SetRequesterOffset(buf []byte, offset uint64) {
	_ = buf[Size-1]
	binary.BigEndian.PutUint64(buf[offsetRequesterOffset:], offset)
}

// SetFlags adds flags to an encoded message.
func SetFlags(buf []byte, flags Flags) {
	_ = buf[Size-1]
	binary.BigEndian.PutUint32(buf[offsetFlags:],
		binary.BigEndian.Uint32(buf[offsetFlags:])|uint32(flags))
}

// IsTraced reports whether the sender of an encoded message wants the IO traced. TraceID may be 0
// all the same if the sender violates the protocol.
func IsTraced(buf []byte) bool { return buf[offsetFlags+3]&byte(Traced) != 0 }

// TraceID returns the ID of the trace of an encoded message, or 0 if it is not traced.
func TraceID(buf []byte) uint32 {
	_ = buf[Size-1]
	if !IsTraced(buf) {
		return 0
	}
	return binary.BigEndian.Uint32(buf[offsetTrace:])
}

// SetCause sets the cause in an encoded message.
func SetCause(buf []byte, cause status.Cause) {
	_ = buf[Size-1]
	binary.BigEndian.PutUint32(buf[offsetCause:], uint32(cause))
}

// TurnIntoResult turns an encoded request into its response in place: only type and result change.
func TurnIntoResult(buf []byte, result status.Code) {
	_ = buf[Size-1]
	binary.BigEndian.PutUint32(buf[offsetType:], uint32(Result))
	binary.BigEndian.PutUint32(buf[offsetResult:], uint32(result))
}
