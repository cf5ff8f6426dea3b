package iwarp

import "encoding/binary"

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
