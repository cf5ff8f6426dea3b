// SPDX-License-Identifier: Apache-2.0

package dmacopy

import (
	"encoding/binary"
	"math"
	"strconv"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// message is one control message. All numbers are big-endian:
//
//	0 magic u32 ("zcdc") · 4 version u8 · 5 kind u8 · 6 zero u16 · 8 body
//
// Reserved bytes are zero, and a message has exactly the length of its kind.
type message interface {
	kind() messageKind
	// appendBody appends the body.
	appendBody(b []byte) []byte
}

type messageKind uint8

const (
	kindOffer messageKind = iota + 1
	kindPlan
	kindExport
	kindFilled
	kindReleased
	kindEnd
	kindStatus
	kindAlive
)

const (
	messageMagic   = 0x7a636463
	messageVersion = 1
	headerSize     = 8
	// maxText bounds the text of a status in bytes.
	maxText = 512
	// exportFixed is an export's body without descriptor.
	exportFixed = 16
)

// offer announces whether the host has the file.
//
//	0 has file u8 (0 or 1) · 1 zero · 8 size u64
type offer struct {
	hasFile bool
	size    uint64
}

// plan describes the copy.
//
//	0 direction u8 · 1 zero · 4 slots u32 · 8 chunk size u64 · 16 size u64
type plan struct {
	direction Direction
	slots     uint32
	chunkSize uint64
	size      uint64
}

// export gives the DPU access to the window.
//
//	0 address u64 · 8 length u64 · 16 descriptor
type export struct {
	address    uint64
	length     uint64
	descriptor []byte
}

// filled announces a chunk in its slot.
//
//	0 chunk u64 · 8 length u64 · 16 checksum u32 · 20 zero u32
type filled struct {
	chunk    uint64
	length   uint64
	checksum uint32 // of the file up to the end of the chunk
}

// released frees a chunk's slot.
//
//	0 chunk u64
type released struct{ chunk uint64 }

// end follows the last chunk.
//
//	0 size u64 · 8 checksum u32 · 12 zero u32
type end struct {
	size     uint64
	checksum uint32
}

// outcome reports success, or the reason of a failure.
//
//	0 code u32 (0 is success) · 4 text length u32 · 8 text
type outcome struct {
	code status.Code
	text string
}

// alive is a sign of life.
type alive struct{}

func (offer) kind() messageKind    { return kindOffer }
func (plan) kind() messageKind     { return kindPlan }
func (export) kind() messageKind   { return kindExport }
func (filled) kind() messageKind   { return kindFilled }
func (released) kind() messageKind { return kindReleased }
func (end) kind() messageKind      { return kindEnd }
func (outcome) kind() messageKind  { return kindStatus }
func (alive) kind() messageKind    { return kindAlive }

func (m offer) appendBody(b []byte) []byte {
	b = append(b, flag(m.hasFile), 0, 0, 0, 0, 0, 0, 0)
	return binary.BigEndian.AppendUint64(b, m.size)
}

func (m plan) appendBody(b []byte) []byte {
	b = append(b, byte(m.direction), 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, m.slots)
	b = binary.BigEndian.AppendUint64(b, m.chunkSize)
	return binary.BigEndian.AppendUint64(b, m.size)
}

func (m export) appendBody(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, m.address)
	b = binary.BigEndian.AppendUint64(b, m.length)
	return append(b, m.descriptor...)
}

func (m filled) appendBody(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, m.chunk)
	b = binary.BigEndian.AppendUint64(b, m.length)
	b = binary.BigEndian.AppendUint32(b, m.checksum)
	return append(b, 0, 0, 0, 0)
}

func (m released) appendBody(b []byte) []byte { return binary.BigEndian.AppendUint64(b, m.chunk) }

func (m end) appendBody(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, m.size)
	b = binary.BigEndian.AppendUint32(b, m.checksum)
	return append(b, 0, 0, 0, 0)
}

func (m outcome) appendBody(b []byte) []byte {
	text := m.text[:min(len(m.text), maxText)]
	b = binary.BigEndian.AppendUint32(b, uint32(m.code))
	b = binary.BigEndian.AppendUint32(b, uint32(len(text)))
	return append(b, text...)
}

func (alive) appendBody(b []byte) []byte { return b }

func flag(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// encode returns the bytes of a message.
func encode(m message) []byte {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, 64), messageMagic)
	return m.appendBody(append(b, messageVersion, byte(m.kind()), 0, 0))
}

// parse reads a message from the peer, which is not trusted.
func parse(b []byte) (message, error) {
	if len(b) < headerSize || binary.BigEndian.Uint32(b) != messageMagic {
		return nil, foreign(b)
	}
	if b[4] != messageVersion {
		return nil, status.Errorf(status.UnsupportedVersion,
			"message has version %d, this program supports %d", b[4], messageVersion)
	}
	kind, body := messageKind(b[5]), b[headerSize:]
	if !zero(b[6:headerSize]) {
		return nil, malformed(kind, "reserved bytes are set")
	}
	switch kind {
	case kindExport:
		return parseExport(body)
	case kindStatus:
		return parseOutcome(body)
	}
	want, known := bodySizes[kind]
	if !known {
		return nil, status.Errorf(status.InvalidValue, "message has unknown kind %d", kind)
	}
	if len(body) != want {
		return nil, malformed(kind, "its body has "+strconv.Itoa(len(body))+" bytes instead of "+
			strconv.Itoa(want))
	}
	return parseFixed(kind, body)
}

var bodySizes = map[messageKind]int{
	kindOffer: 16, kindPlan: 24, kindFilled: 24, kindReleased: 8, kindEnd: 16, kindAlive: 0,
}

// parseFixed reads a message of a kind with a fixed length, which the caller has checked.
func parseFixed(kind messageKind, b []byte) (message, error) {
	be := binary.BigEndian
	var m message
	var reserved []byte
	switch kind {
	case kindOffer:
		if b[0] > 1 {
			return nil, malformed(kind, "its flag is neither 0 nor 1")
		}
		m, reserved = offer{hasFile: b[0] == 1, size: be.Uint64(b[8:])}, b[1:8]
	case kindPlan:
		m, reserved = plan{direction: Direction(b[0]), slots: be.Uint32(b[4:]),
			chunkSize: be.Uint64(b[8:]), size: be.Uint64(b[16:])}, b[1:4]
	case kindFilled:
		m, reserved = filled{chunk: be.Uint64(b), length: be.Uint64(b[8:]),
			checksum: be.Uint32(b[16:])}, b[20:]
	case kindReleased:
		m = released{chunk: be.Uint64(b)}
	case kindEnd:
		m, reserved = end{size: be.Uint64(b), checksum: be.Uint32(b[8:])}, b[12:]
	case kindAlive:
		m = alive{}
	}
	if !zero(reserved) {
		return nil, malformed(kind, "reserved bytes are set")
	}
	return m, nil
}

func parseExport(b []byte) (message, error) {
	if len(b) <= exportFixed || len(b) > exportFixed+comch.MaxExportLength {
		return nil, malformed(kindExport, "its descriptor is empty or too long")
	}
	m := export{address: binary.BigEndian.Uint64(b), length: binary.BigEndian.Uint64(b[8:])}
	m.descriptor = append(m.descriptor, b[exportFixed:]...)
	return m, nil
}

func parseOutcome(b []byte) (message, error) {
	if len(b) < 8 {
		return nil, malformed(kindStatus, "it is too short")
	}
	length, text := binary.BigEndian.Uint32(b[4:]), b[8:]
	if length > maxText || int(length) != len(text) {
		return nil, malformed(kindStatus, "its text length is wrong")
	}
	return outcome{code: status.Code(binary.BigEndian.Uint32(b)), text: string(text)}, nil
}

func malformed(kind messageKind, why string) error {
	return status.Errorf(status.InvalidValue, "message of kind %d is malformed: %s", kind, why)
}

// foreign returns the error for a message of another protocol.
func foreign(b []byte) error {
	if _, err := parseOriginal(b); err == nil {
		return status.Errorf(status.UnsupportedVersion,
			"the peer speaks the messages of the DOCA application: use --compat")
	}
	return status.Errorf(status.InvalidValue,
		"a message of %d bytes does not belong to this protocol", len(b))
}

func zero(b []byte) bool {
	for _, v := range b {
		if v != 0 {
			return false
		}
	}
	return true
}

// validate checks a plan as far as its receiver can.
func (m plan) validate(own *input) error {
	onHost := own != nil
	switch {
	case m.direction != ToDPU && m.direction != ToHost, (m.direction == ToDPU) != onHost:
		return status.Errorf(status.InvalidValue,
			"the DPU plans to copy from %v, which contradicts the side that has the file",
			m.direction)
	case onHost && m.size != own.size:
		return status.Errorf(status.InvalidValue,
			"the DPU expects a file of %d bytes, this one has %d", m.size, own.size)
	case m.size > math.MaxInt64:
		return status.Errorf(status.TooBig, "a file of %d bytes is too large", m.size)
	case m.chunkSize < 1 || m.chunkSize > maxChunkSize || m.slots < 1 || m.slots > maxSlots ||
		m.chunkSize*uint64(m.slots) > maxWindow:
		return status.Errorf(status.TooBig,
			"a window of %d slots of %d bytes is not within the limits", m.slots, m.chunkSize)
	}
	return nil
}

// chunks returns the number of chunks.
func (m plan) chunks() uint64 {
	if m.size == 0 {
		return 0
	}
	return (m.size-1)/m.chunkSize + 1
}

// length returns the length of a chunk in bytes.
func (m plan) length(chunk uint64) uint64 { return min(m.chunkSize, m.size-chunk*m.chunkSize) }

// window returns the size of the window in bytes.
func (m plan) window() uint64 { return m.chunkSize * uint64(m.slots) }

// slot returns the offset of a chunk in the window.
func (m plan) slot(chunk uint64) uint64 { return chunk % uint64(m.slots) * m.chunkSize }
