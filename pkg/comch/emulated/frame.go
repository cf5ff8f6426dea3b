// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// protocolVersion covers everything that two processes share: frames, rings, doorbells. Only equal
// versions interoperate.
const protocolVersion = 3

// protocolMagic is the first field of a client's first frame ("zcch").
const protocolMagic = 0x6863637a

// frameKind is the type of a frame. Numbers in frames are little-endian.
type frameKind uint16

const (
	// frameHello opens a connection, from client to server. Fields: magic, version, message size,
	// receive queue.
	frameHello frameKind = iota + 1
	// frameWelcome accepts a connection. Fields: version, message size, receive queue.
	frameWelcome
	// frameGoodbye rejects or ends a connection. Fields: code. The body is text.
	frameGoodbye
	// frameMessage carries a control message in its body.
	frameMessage
	// frameCredit allows the peer to send more control messages. Fields: count.
	frameCredit
	// frameOpenConsumer announces a consumer. Fields: id, receives, memory size, maximum length of
	// immediate data. It carries the button of the consumer's doorbell and, if the server sends it,
	// the ring's memory.
	frameOpenConsumer
	// frameCloseConsumer ends a consumer, whose ring its owner no longer needs. Fields: id.
	frameCloseConsumer
	// frameOpenProducer announces a producer. Fields: id, consumer id. It carries the button of the
	// producer's doorbell.
	frameOpenProducer
	// frameCloseProducer ends a producer. Fields: id, consumer id.
	frameCloseProducer
	// frameExport exports memory. Fields: id, access rights, low and high half of the length. It
	// carries the memory's descriptor.
	frameExport
	// frameReply replies to an open or an export. Fields: id, code. The body is text. The server's
	// reply to a new consumer carries the ring's memory.
	frameReply
	// frameStopConsumer ends the producers of a consumer. Its owner still reads the ring, until
	// frameCloseConsumer. Fields: id.
	frameStopConsumer

	frameKindCount
)

// frameShape describes the parts of a frame.
type frameShape struct {
	fields      int
	hasBody     bool
	descriptors int // at most
}

var frameShapes = [frameKindCount]frameShape{
	frameHello:         {fields: 4},
	frameWelcome:       {fields: 3},
	frameGoodbye:       {fields: 1, hasBody: true},
	frameMessage:       {hasBody: true},
	frameCredit:        {fields: 1},
	frameOpenConsumer:  {fields: 4, descriptors: 2},
	frameCloseConsumer: {fields: 1},
	frameOpenProducer:  {fields: 2, descriptors: 1},
	frameCloseProducer: {fields: 2},
	frameExport:        {fields: 4, descriptors: 1},
	frameReply:         {fields: 2, hasBody: true, descriptors: 1},
	frameStopConsumer:  {fields: 1},
}

// Sizes in bytes. A frame consists of kind u16, zero u16, length of the rest u32, fields of 4
// bytes, and body.
const (
	frameHeaderSize = 8
	maxFields       = 4
	maxTextLength   = 512
	// frameOverhead is the size of everything except the body.
	frameOverhead = frameHeaderSize + 4*maxFields
)

// role is a side of a connection. The client assigns odd ids and the server even ones, so that ids
// are unique on the connection.
type role uint32

const (
	clientRole role = 1
	serverRole role = 2
)

func (r role) other() role { return clientRole + serverRole - r }

// isOwnerOf reports whether side r assigned id.
func (r role) isOwnerOf(id uint32) bool { return id != 0 && id%2 == uint32(r)%2 }

// frame is one packet on the socket of a connection.
type frame struct {
	kind   frameKind
	fields [maxFields]uint32
	body   []byte
}

// textFrame returns a frame with the given fields, the code of err, and its text as the body.
func textFrame(kind frameKind, err error, fields ...uint32) frame {
	f := frame{kind: kind}
	n := copy(f.fields[:], fields)
	f.fields[n] = uint32(status.CodeOf(err))
	if err != nil {
		text := err.Error()
		f.body = []byte(text[:min(len(text), maxTextLength)])
	}
	return f
}

// append appends the encoded frame to packet.
func (f *frame) append(packet []byte) []byte {
	shape := frameShapes[f.kind]
	packet = binary.LittleEndian.AppendUint16(packet, uint16(f.kind))
	packet = binary.LittleEndian.AppendUint16(packet, 0)
	packet = binary.LittleEndian.AppendUint32(packet, uint32(4*shape.fields+len(f.body)))
	for _, field := range f.fields[:shape.fields] {
		packet = binary.LittleEndian.AppendUint32(packet, field)
	}
	return append(packet, f.body...)
}

// parseFrame decodes a packet. The body of the frame aliases packet.
func parseFrame(packet []byte) (frame, error) {
	if len(packet) < frameHeaderSize {
		return frame{}, violation("frame of %d bytes is shorter than its header", len(packet))
	}
	kind := frameKind(binary.LittleEndian.Uint16(packet))
	if kind == 0 || kind >= frameKindCount {
		return frame{}, violation("frame has unknown kind %d", kind)
	}
	if zero := binary.LittleEndian.Uint16(packet[2:]); zero != 0 {
		return frame{}, violation("frame of kind %d has reserved bits %#x", kind, zero)
	}
	rest := packet[frameHeaderSize:]
	if length := binary.LittleEndian.Uint32(packet[4:]); uint64(length) != uint64(len(rest)) {
		return frame{}, violation("frame of kind %d has length field %d, but %d bytes",
			kind, length, len(rest))
	}
	shape := frameShapes[kind]
	if len(rest) < 4*shape.fields || (!shape.hasBody && len(rest) > 4*shape.fields) {
		return frame{}, violation("frame of kind %d has %d bytes, its fields take %d",
			kind, len(rest), 4*shape.fields)
	}
	f := frame{kind: kind, body: rest[4*shape.fields:]}
	for i := range shape.fields {
		f.fields[i] = binary.LittleEndian.Uint32(rest[4*i:])
	}
	return f, nil
}

// peerError converts a code and text from the peer to an error, which is nil for status.Success. It
// quotes the text, which can hold anything.
func peerError(code uint32, text []byte) error {
	if code == uint32(status.Success) {
		return nil
	}
	return status.Errorf(status.Code(code), "reported by peer: %q",
		text[:min(len(text), maxTextLength)])
}

// errViolation matches every violation of the protocol by the peer. A violation ends the
// connection.
var errViolation = errors.New("peer violated the protocol")

// violation returns an error that describes a violation by the peer.
func violation(format string, args ...any) error {
	return status.Errorf(status.Unexpected, "%w: %s", errViolation, fmt.Sprintf(format, args...))
}

func isViolation(err error) bool { return errors.Is(err, errViolation) }
