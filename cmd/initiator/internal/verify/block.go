package verify

import (
	"encoding/binary"
	"hash/crc32"
)

// Every block starts with a header and continues with data that only its
// identity has, so that a block tells what it is, and whether all of it is
// that. Numbers are big-endian.
//
//	 0 magic         8 bytes
//	 8 run           u64, drawn anew for every run
//	16 offset        u64, of the block in the volume, in bytes
//	24 generation    u32, the pass that wrote it, from 1
//	28 block size    u32
//	32 checksum      u32, CRC-32C of everything else in the block
//	36 zero          28 bytes
//	64 data          words of 8 bytes
const (
	offsetRun        = 8
	offsetOffset     = 16
	offsetGeneration = 24
	offsetBlockSize  = 28
	offsetChecksum   = 32
	offsetZero       = 36
	headerSize       = 64
)

const magic = "zcVERIFY"

// smallestBlock has room for the header and some data.
const smallestBlock = 2 * headerSize

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// identity is what distinguishes a block from every other that was ever
// written.
type identity struct {
	run        uint64
	offset     uint64
	generation uint32
}

// header is what a block says of itself.
type header struct {
	identity
	magic     bool // it has one
	blockSize uint32
	checksum  uint32
}

// stamp makes data the block with the given identity.
func (id identity) stamp(data []byte) {
	copy(data, magic)
	binary.BigEndian.PutUint64(data[offsetRun:], id.run)
	binary.BigEndian.PutUint64(data[offsetOffset:], id.offset)
	binary.BigEndian.PutUint32(data[offsetGeneration:], id.generation)
	binary.BigEndian.PutUint32(data[offsetBlockSize:], uint32(len(data)))
	clear(data[offsetZero:headerSize])
	word := mix(id.run ^ mix(id.offset^mix(uint64(id.generation))))
	for rest := data[headerSize:]; len(rest) >= 8; rest = rest[8:] {
		word += weyl
		binary.BigEndian.PutUint64(rest, mix(word))
	}
	binary.BigEndian.PutUint32(data[offsetChecksum:], checksum(data))
}

// weyl is the odd number by which splitmix64 counts: 2^64 over the golden
// ratio.
const weyl = 0x9e3779b97f4a7c15

// mix is the output function of splitmix64: it spreads every bit of its
// argument over all bits of the result.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func checksum(data []byte) uint32 {
	return crc32.Update(crc32.Update(0, castagnoli, data[:offsetChecksum]), castagnoli, data[offsetZero:])
}

func parseHeader(data []byte) header {
	return header{
		identity: identity{
			run:        binary.BigEndian.Uint64(data[offsetRun:]),
			offset:     binary.BigEndian.Uint64(data[offsetOffset:]),
			generation: binary.BigEndian.Uint32(data[offsetGeneration:]),
		},
		magic:     string(data[:len(magic)]) == magic,
		blockSize: binary.BigEndian.Uint32(data[offsetBlockSize:]),
		checksum:  binary.BigEndian.Uint32(data[offsetChecksum:]),
	}
}

// intact reports whether data is the whole block that h, its header, says.
func (h *header) intact(data []byte) bool {
	return h.magic && h.blockSize == uint32(len(data)) && h.checksum == checksum(data)
}

// holds reports whether data is the block with the given identity.
func (id identity) holds(data []byte) bool {
	h := parseHeader(data)
	return h.identity == id && h.intact(data)
}
