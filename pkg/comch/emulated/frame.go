package emulated

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// protocolVersion is that of everything two processes share: frames, rings,
// doorbells. Only equal versions talk to each other.
const protocolVersion = 1

// protocolMagic opens a client's first frame ("zcch").
const protocolMagic = 0x6863637a

// frameKind says what a frame is for. Both processes run on one machine, and
// numbers are little-endian.
type frameKind uint16

const (
	// frameHello opens a connection: magic, version, message size, receive
	// queue. Client to server.
	frameHello frameKind = iota + 1
	// frameWelcome accepts it: version, message size, receive queue.
	frameWelcome
	// frameGoodbye refuses or ends a connection: code; the body is text.
	frameGoodbye
	// frameMessage carries a control message in its body.
	frameMessage
	// frameCredit allows so many more control messages: count.
	frameCredit
	// frameOpenConsumer tells of a consumer: id, receives, memory size, most
	// bytes of immediate data. It carries the push of the consumer's doorbell
	// and, from the server, the ring's memory.
	frameOpenConsumer
	// frameCloseConsumer ends a consumer: id.
	frameCloseConsumer
	// frameOpenProducer tells of a producer: id, consumer id. It carries the
	// push of the producer's doorbell.
	frameOpenProducer
	// frameCloseProducer ends a producer: id, consumer id.
	frameCloseProducer
	// frameExport offers memory: id, access rights, low and high half of the
	// length. It carries the memory's descriptor.
	frameExport
	// frameReply answers an open or an export: id, code; the body is text.
	// From the server to a new consumer it carries the ring's memory.
	frameReply

	frameKindCount
)

// frameShape is what frames of a kind are made of.
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
}

// Sizes in bytes. A frame is: kind u16, zero u16, length of the rest u32,
// fields of 4 bytes, body.
const (
	frameHeaderSize = 8
	maxFields       = 4
	maxTextLength   = 512
	// frameOverhead is what a frame needs besides its body.
	frameOverhead = frameHeaderSize + 4*maxFields
)

// frame is one packet on the socket of a connection.
type frame struct {
	kind   frameKind
	fields [maxFields]uint32
	body   []byte
}

// textFrame makes a frame of a kind that ends in a code and text.
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

// append writes the frame to the end of packet.
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

// parseFrame reads a packet. The body of the frame is part of packet.
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
		return frame{}, violation("frame of kind %d announces %d bytes and has %d", kind, length, len(rest))
	}
	shape := frameShapes[kind]
	if len(rest) < 4*shape.fields || (!shape.hasBody && len(rest) > 4*shape.fields) {
		return frame{}, violation("frame of kind %d has %d bytes, its fields take %d", kind, len(rest), 4*shape.fields)
	}
	f := frame{kind: kind, body: rest[4*shape.fields:]}
	for i := range shape.fields {
		f.fields[i] = binary.LittleEndian.Uint32(rest[4*i:])
	}
	return f, nil
}

// peerError turns the code and text of a peer into an error. The text is
// quoted, since it may hold anything.
func peerError(code uint32, text []byte) error {
	if code == uint32(status.Success) {
		return nil
	}
	return status.Errorf(status.Code(code), "peer says: %q", text[:min(len(text), maxTextLength)])
}

// errViolation is a breach of the protocol by the peer. It ends the
// connection.
var errViolation = errors.New("peer broke the protocol")

// violation says which rule was broken by which value.
func violation(format string, args ...any) error {
	return status.Errorf(status.Unexpected, "%w: %s", errViolation, fmt.Sprintf(format, args...))
}

func isViolation(err error) bool { return errors.Is(err, errViolation) }
