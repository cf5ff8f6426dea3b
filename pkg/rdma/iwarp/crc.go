package iwarp

import (
	"encoding/binary"
	"hash/crc32"
)

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
