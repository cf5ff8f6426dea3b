// SPDX-License-Identifier: Apache-2.0

package iwarp

import (
	"encoding/binary"
	"hash/crc32"
)

// The framing of RFC 5044 section 4: ULPDU_Length, ULPDU, padding to a multiple of four bytes, and
// CRC. The ULPDU is one DDP segment.
const (
	lengthBytes = 2
	crcBytes    = 4
	maxTrailer  = 3 + crcBytes
	maxULPDU    = 65535
	// maxFPDUBytes is the length of the largest FPDU.
	maxFPDUBytes = (lengthBytes+maxULPDU+3)&^3 + crcBytes
)

var zeroTrailer [maxTrailer]byte

// padLength returns the number of zero bytes that follow a ULPDU of the given length.
func padLength(ulpdu int) int { return -(lengthBytes + ulpdu) & 3 }

// fpduBytes returns the length of the FPDU that starts with b, which holds its length field.
func fpduBytes(b []byte) int {
	ulpdu := int(binary.BigEndian.Uint16(b))
	return lengthBytes + ulpdu + padLength(ulpdu) + crcBytes
}

// appendTrailer appends padding and CRC to frame, which starts with the length field of an FPDU and
// contains all of it so far. The CRC field is zero if CRCs are not in use.
func appendTrailer(frame []byte, useCRC bool) []byte {
	frame = append(frame, zeroTrailer[:padLength(len(frame)-lengthBytes)]...)
	if !useCRC {
		return append(frame, zeroTrailer[:crcBytes]...)
	}
	// The CRC is the only little-endian field of the protocol.
	return binary.LittleEndian.AppendUint32(frame, updateCRC(0, frame))
}

// maxULPDUFor returns the largest ULPDU, without markers, that fits into a TCP segment of the given
// effective maximum segment size (MULPDU, RFC 5044 section 5.1). A full FPDU then needs no padding.
func maxULPDUFor(segmentBytes int) int {
	n := segmentBytes - (lengthBytes + crcBytes) - segmentBytes%4
	return max(minULPDU, min(n, maxULPDU))
}

// minULPDU is the smallest MULPDU that RFC 5044 section 5.1 allows. It is used if TCP reports less.
const minULPDU = 128 - 2

// castagnoli is the polynomial table of CRC32C (RFC 5044 section 4.4). On amd64 and arm64,
// hash/crc32 uses dedicated instructions for it.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// updateCRC adds b to a running CRC32C, which starts at 0.
func updateCRC(crc uint32, b []byte) uint32 {
	return crc32.Update(crc, castagnoli, b)
}

// validCRC reports whether the CRC of a whole FPDU is correct.
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

// tagged reports whether the message names its destination memory by an STag and an offset.
func (o opcode) tagged() bool { return o == opWrite || o == opReadResponse }

// hasInvalidate reports whether the message also asks the receiver to invalidate an STag.
func (o opcode) hasInvalidate() bool {
	return o == opSendInvalidate || o == opSendSolicitedInvalidate
}

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

// Header sizes, including the ULPDU_Length that precedes each header in the stream.
const (
	prefixBytes      = lengthBytes + 2
	taggedBytes      = lengthBytes + 14
	untaggedBytes    = lengthBytes + 18
	readRequestBytes = untaggedBytes + 28
	terminateBytes   = untaggedBytes + 4
	maxHeaderBytes   = readRequestBytes
)

// headerBytes is the number of bytes before the payload, by opcode.
var headerBytes = [opcodeCount]uint8{
	opWrite: taggedBytes, opReadResponse: taggedBytes,
	opReadRequest: readRequestBytes, opTerminate: terminateBytes,
	opSend: untaggedBytes, opSendInvalidate: untaggedBytes,
	opSendSolicited: untaggedBytes, opSendSolicitedInvalidate: untaggedBytes,
}

// prefix is the start of an FPDU, which determines the length of its header.
type prefix struct {
	ulpdu int
	op    opcode
	last  bool
}

// payload returns the number of bytes after the header.
func (p prefix) payload() int { return lengthBytes + p.ulpdu - int(headerBytes[p.op]) }

// parsePrefix decodes and checks the first prefixBytes of an FPDU.
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

// taggedHeader is the header of a Write or Read Response (RFC 5041 section 4.2).
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

// append appends the header of an FPDU whose payload has the given length.
func (h taggedHeader) append(b []byte, payload int) []byte {
	b = appendPrefix(b, h.op, h.last, taggedBytes-lengthBytes+payload)
	b = binary.BigEndian.AppendUint32(b, h.stag)
	return binary.BigEndian.AppendUint64(b, h.offset)
}

// untaggedHeader is the header of all other messages (RFC 5041 section 4.3).
type untaggedHeader struct {
	op         opcode
	last       bool
	invalidate uint32 // STag, for the Sends with Invalidate
	queue      uint32 // QN
	sequence   uint32 // MSN: number of the message in its queue, from 1
	offset     uint32 // MO: bytes of the message before this segment
}

func parseUntagged(p prefix, b []byte) untaggedHeader {
	return untaggedHeader{
		op: p.op, last: p.last,
		invalidate: binary.BigEndian.Uint32(b[4:]), queue: binary.BigEndian.Uint32(b[8:]),
		sequence: binary.BigEndian.Uint32(b[12:]), offset: binary.BigEndian.Uint32(b[16:]),
	}
}

// append appends the header of an FPDU whose payload has the given length.
func (h untaggedHeader) append(b []byte, payload int) []byte {
	b = appendPrefix(b, h.op, h.last, untaggedBytes-lengthBytes+payload)
	b = binary.BigEndian.AppendUint32(b, h.invalidate)
	b = binary.BigEndian.AppendUint32(b, h.queue)
	b = binary.BigEndian.AppendUint32(b, h.sequence)
	return binary.BigEndian.AppendUint32(b, h.offset)
}

// readRequest is the part of a Read Request after its untagged header (RFC 5040 section 4.4).
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
		length:       binary.BigEndian.Uint32(b[12:]),
		sourceSTag:   binary.BigEndian.Uint32(b[16:]),
		sourceOffset: binary.BigEndian.Uint64(b[20:]),
	}
}

// append appends a whole Read Request except its trailer.
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
