package iwarp

import (
	"encoding/binary"
	"hash/crc32"
)

// The framing of RFC 5044 section 4: ULPDU_Length, ULPDU, padding to a
// multiple of four bytes, CRC.
const (
	lengthBytes = 2
	crcBytes    = 4
	maxTrailer  = 3 + crcBytes
	maxULPDU    = 65535
)

var zeroTrailer [maxTrailer]byte

// padLength is the number of zero bytes after a ULPDU of the given length.
func padLength(ulpdu int) int { return -(lengthBytes + ulpdu) & 3 }

// appendTrailer ends an FPDU: frame is all of it that is contiguous from its
// length field on. The CRC field is sent as zero if CRCs are not in use.
func appendTrailer(frame []byte, useCRC bool) []byte {
	frame = append(frame, zeroTrailer[:padLength(len(frame)-lengthBytes)]...)
	if !useCRC {
		return append(frame, zeroTrailer[:crcBytes]...)
	}
	// The CRC is the one little-endian field of the protocol.
	return binary.LittleEndian.AppendUint32(frame, updateCRC(0, frame))
}

// maxULPDUFor is the largest ULPDU that fits a TCP segment of the given
// effective maximum segment size without markers (MULPDU, RFC 5044 section
// 5.1). It is such that a full FPDU needs no padding.
func maxULPDUFor(segmentBytes int) int {
	n := segmentBytes - (lengthBytes + crcBytes) - segmentBytes%4
	return max(minULPDU, min(n, maxULPDU))
}

// minULPDU is the smallest MULPDU that RFC 5044 section 5.1 lets a peer
// assume, for when TCP reports less.
const minULPDU = 128 - 2

// castagnoli is the table of CRC32C (RFC 5044 section 4.4), which has
// instructions of its own on amd64 and arm64.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// updateCRC adds b to a running CRC32C. The first call takes 0.
func updateCRC(crc uint32, b []byte) uint32 {
	return crc32.Update(crc, castagnoli, b)
}

// validCRC checks a whole FPDU.
func validCRC(frame []byte) bool {
	end := len(frame) - crcBytes
	return updateCRC(0, frame[:end]) == binary.LittleEndian.Uint32(frame[end:])
}

// opcode is an RDMAP message type (RFC 5040 section 4.1).
type opcode uint8

const (
	opWrite opcode = iota
	opReadRequest
	opReadResponse
	opSend
	opSendInvalidate
	opSendSolicited
	opSendSolicitedInvalidate
	opTerminate

	opcodeCount
)

func (o opcode) tagged() bool { return o == opWrite || o == opReadResponse }

func (o opcode) invalidates() bool { return o == opSendInvalidate || o == opSendSolicitedInvalidate }

// The queues of untagged messages (RFC 5040 section 3.1).
const (
	queueSend        = 0
	queueReadRequest = 1
	queueTerminate   = 2
)

// The first two bytes of a segment (RFC 5041 section 4.1, RFC 5040 section 4.1).
const (
	ddpTagged     = 0x80
	ddpLast       = 0x40
	ddpVersion    = 0x01
	ddpVersionOf  = 0x03
	rdmapVersion  = 0x40
	rdmapVerOf    = 0xc0
	rdmapOpcodeOf = 0x0f
)

// Header sizes, each with the ULPDU_Length in front, as they lie in the stream.
const (
	prefixBytes      = lengthBytes + 2
	taggedBytes      = lengthBytes + 14
	untaggedBytes    = lengthBytes + 18
	readRequestBytes = untaggedBytes + 28
	terminateBytes   = untaggedBytes + 4
	maxHeaderBytes   = readRequestBytes
)

// headerBytes is how many bytes precede the payload, by opcode.
var headerBytes = [opcodeCount]uint8{
	opWrite: taggedBytes, opReadResponse: taggedBytes,
	opReadRequest: readRequestBytes, opTerminate: terminateBytes,
	opSend: untaggedBytes, opSendInvalidate: untaggedBytes,
	opSendSolicited: untaggedBytes, opSendSolicitedInvalidate: untaggedBytes,
}

// prefix is the start of an FPDU, enough to know how long its header is.
type prefix struct {
	ulpdu int
	op    opcode
	last  bool
}

// payload is how many bytes follow the header.
func (p prefix) payload() int { return lengthBytes + p.ulpdu - int(headerBytes[p.op]) }

// parsePrefix reads and checks the first prefixBytes of an FPDU.
func parsePrefix(b []byte) (prefix, *violation) {
	ulpdu := int(binary.BigEndian.Uint16(b))
	if ulpdu < taggedBytes-lengthBytes {
		return prefix{}, violationLength
	}
	ddp, rdmap := b[2], b[3]
	tagged := ddp&ddpTagged != 0
	if ddp&ddpVersionOf != ddpVersion {
		if tagged {
			return prefix{}, violationTaggedVersion
		}
		return prefix{}, violationUntaggedVersion
	}
	if rdmap&rdmapVerOf != rdmapVersion {
		return prefix{}, violationRDMAPVersion
	}
	p := prefix{ulpdu: ulpdu, op: opcode(rdmap & rdmapOpcodeOf), last: ddp&ddpLast != 0}
	if p.op >= opcodeCount || p.op.tagged() != tagged {
		return prefix{}, violationOpcode
	}
	if p.payload() < 0 {
		return prefix{}, violationLength
	}
	return p, nil
}

// taggedHeader is that of a Write or Read Response (RFC 5041 section 4.2).
type taggedHeader struct {
	op     opcode
	last   bool
	stag   uint32
	offset uint64 // TO
}

func parseTagged(p prefix, b []byte) taggedHeader {
	return taggedHeader{
		op: p.op, last: p.last,
		stag: binary.BigEndian.Uint32(b[4:]), offset: binary.BigEndian.Uint64(b[8:]),
	}
}

// append writes the header of an FPDU with the given payload length.
func (h taggedHeader) append(b []byte, payload int) []byte {
	b = appendPrefix(b, h.op, h.last, taggedBytes-lengthBytes+payload)
	b = binary.BigEndian.AppendUint32(b, h.stag)
	return binary.BigEndian.AppendUint64(b, h.offset)
}

// untaggedHeader is that of all other messages (RFC 5041 section 4.3).
type untaggedHeader struct {
	op         opcode
	last       bool
	invalidate uint32 // STag, for the Sends with Invalidate
	queue      uint32 // QN
	sequence   uint32 // MSN: counts the messages of a queue from 1
	offset     uint32 // MO: bytes of the message before this segment
}

func parseUntagged(p prefix, b []byte) untaggedHeader {
	return untaggedHeader{
		op: p.op, last: p.last,
		invalidate: binary.BigEndian.Uint32(b[4:]), queue: binary.BigEndian.Uint32(b[8:]),
		sequence: binary.BigEndian.Uint32(b[12:]), offset: binary.BigEndian.Uint32(b[16:]),
	}
}

func (h untaggedHeader) append(b []byte, payload int) []byte {
	b = appendPrefix(b, h.op, h.last, untaggedBytes-lengthBytes+payload)
	b = binary.BigEndian.AppendUint32(b, h.invalidate)
	b = binary.BigEndian.AppendUint32(b, h.queue)
	b = binary.BigEndian.AppendUint32(b, h.sequence)
	return binary.BigEndian.AppendUint32(b, h.offset)
}

// readRequest is what a Read Request carries behind its untagged header
// (RFC 5040 section 4.4).
type readRequest struct {
	sinkSTag     uint32
	sinkOffset   uint64
	length       uint32
	sourceSTag   uint32
	sourceOffset uint64
}

func parseReadRequest(b []byte) readRequest {
	b = b[untaggedBytes:]
	return readRequest{
		sinkSTag: binary.BigEndian.Uint32(b), sinkOffset: binary.BigEndian.Uint64(b[4:]),
		length:     binary.BigEndian.Uint32(b[12:]),
		sourceSTag: binary.BigEndian.Uint32(b[16:]), sourceOffset: binary.BigEndian.Uint64(b[20:]),
	}
}

// append writes a whole Read Request but for its trailer.
func (r readRequest) append(b []byte, sequence uint32) []byte {
	h := untaggedHeader{op: opReadRequest, last: true, queue: queueReadRequest, sequence: sequence}
	b = h.append(b, readRequestBytes-untaggedBytes)
	b = binary.BigEndian.AppendUint32(b, r.sinkSTag)
	b = binary.BigEndian.AppendUint64(b, r.sinkOffset)
	b = binary.BigEndian.AppendUint32(b, r.length)
	b = binary.BigEndian.AppendUint32(b, r.sourceSTag)
	return binary.BigEndian.AppendUint64(b, r.sourceOffset)
}

func appendPrefix(b []byte, op opcode, last bool, ulpdu int) []byte {
	control := byte(ddpVersion)
	if op.tagged() {
		control |= ddpTagged
	}
	if last {
		control |= ddpLast
	}
	b = binary.BigEndian.AppendUint16(b, uint16(ulpdu))
	return append(b, control, rdmapVersion|byte(op))
}
