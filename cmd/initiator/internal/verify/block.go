// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Every block starts with a header and continues with data that is unique to its identity. So a
// block shows what it is, and whether all of it is intact. Numbers are big-endian.
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

// identity distinguishes a block from every other block ever written.
type identity struct {
	run        uint64
	offset     uint64
	generation uint32
}

// header is the header found in a block.
type header struct {
	identity
	magic     bool // is present
	blockSize uint32
	checksum  uint32
}

// stamp fills data with the block of the given identity.
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

// weyl is the increment of splitmix64: 2^64 divided by the golden ratio, odd.
const weyl = 0x9e3779b97f4a7c15

// mix is the output function of splitmix64: it spreads every bit of its
// argument over all bits of the result.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// poisonPattern fills the buffers that no request uses. A block that contains it was written from
// such a buffer.
const poisonPattern = "zcPOISONzcPOISON"

func newPoison(size uint64) []byte {
	return bytes.Repeat([]byte(poisonPattern), int(size)/len(poisonPattern)+1)[:size]
}

func checksum(data []byte) uint32 {
	return crc32.Update(crc32.Update(0, castagnoli, data[:offsetChecksum]), castagnoli,
		data[offsetZero:])
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

// intact reports whether data is the whole block that its header h describes.
func (h *header) intact(data []byte) bool {
	return h.magic && h.blockSize == uint32(len(data)) && h.checksum == checksum(data)
}

// holds reports whether data is the block with the given identity.
func (id identity) holds(data []byte) bool {
	h := parseHeader(data)
	return h.identity == id && h.intact(data)
}

// olderGenerations is the number of earlier passes that are searched for the second half of a torn
// block.
const olderGenerations = 64

// classify determines how data differs from the block want.
func classify(data []byte, want identity) Finding {
	c := &classifier{data: data, want: want, header: parseHeader(data)}
	expected := c.render(want)
	f := Finding{
		Offset: want.offset, ExpectedGeneration: want.generation,
		FirstWrongByte: firstDifference(data, expected), LastWrongByte: lastDifference(data,
			expected),
	}
	if c.header.magic {
		f.Found = &FoundHeader{
			Run: runName(c.header.run), Offset: c.header.offset, Generation: c.header.generation,
			ChecksumValid: c.header.checksum == checksum(data),
		}
	}
	c.judge(&f)
	return f
}

// classifier compares a block with others that it might consist of.
type classifier struct {
	data   []byte
	want   identity
	header header
}

// render returns the block with the given identity.
func (c *classifier) render(id identity) []byte {
	block := make([]byte, len(c.data))
	id.stamp(block)
	return block
}

func (c *classifier) judge(f *Finding) {
	ours := c.header.magic && c.header.run == c.want.run
	poisoned := bytes.Index(c.data, []byte(poisonPattern))
	switch {
	case poisoned >= 0:
		f.Kind, f.Detail = Poisoned, fmt.Sprintf(
			"holds the poison of a free buffer at byte %d: the transport read the buffer "+
				"before its request or after it", poisoned)
	case ours && c.header.intact(c.data):
		c.judgeIntact(f)
	case ours:
		c.judgeBroken(f)
	default:
		c.judgeForeign(f)
	}
}

// judgeIntact classifies an intact block of this run.
func (c *classifier) judgeIntact(f *Finding) {
	switch {
	case c.header.offset != c.want.offset:
		f.Kind, f.Detail = Misplaced,
			fmt.Sprintf("holds the data that pass %[2]d wrote to offset %[1]d", c.header.offset,
				c.header.generation)
	case c.header.generation < c.want.generation:
		f.Kind, f.Detail = Stale, fmt.Sprintf("holds the data of pass %d", c.header.generation)
	default:
		f.Kind, f.Detail = Corrupt,
			fmt.Sprintf("claims to be from pass %d, which has not written it yet",
				c.header.generation)
	}
}

// judgeBroken classifies a block that begins like one of this run. If the header itself is wrong,
// it says nothing about the origin of the data.
func (c *classifier) judgeBroken(f *Finding) {
	if f.LastWrongByte < headerSize {
		f.judgeCorrupt()
		return
	}
	begins := c.render(c.header.identity)
	first, last := firstDifference(c.data, begins), lastDifference(c.data, begins)
	if other, ok := c.endsLike(first); ok {
		f.Kind, f.TornAtByte = Torn, first
		f.Detail = fmt.Sprintf("begins as generation %d and continues as generation %d at byte %d",
			c.header.generation, other, first)
		return
	}
	if first >= headerSize && last >= len(c.data)-8 {
		f.Kind, f.TornAtByte = Torn, first
		f.Detail = fmt.Sprintf("begins as generation %d and continues with %s at byte %d",
			c.header.generation, describe(c.data[first:]), first)
		return
	}
	f.judgeCorrupt()
}

// endsLike searches for the generation of the block that matches the data from byte first on.
func (c *classifier) endsLike(first int) (generation uint32, ok bool) {
	if first == 0 || first >= len(c.data)-8 {
		return 0, false // a few bytes can match by chance
	}
	for id := c.want; id.generation > 0 &&
		c.want.generation-id.generation < olderGenerations; id.generation-- {
		if id != c.header.identity && bytes.Equal(c.data[first:], c.render(id)[first:]) {
			return id.generation, true
		}
	}
	return 0, false
}

// judgeForeign classifies a block that does not begin like one of this run.
func (c *classifier) judgeForeign(f *Finding) {
	rest := f.LastWrongByte + 1
	switch {
	case rest > len(c.data)-8:
		f.Kind, f.Detail = Lost, "holds "+c.foreign()
	case f.FirstWrongByte == 0 && rest >= headerSize:
		f.Kind, f.TornAtByte = Torn, rest
		f.Detail = fmt.Sprintf("begins with %s and matches from byte %d on",
			describe(c.data[:rest]), rest)
	default:
		f.judgeCorrupt()
	}
}

func (f *Finding) judgeCorrupt() {
	f.Kind, f.Detail = Corrupt, fmt.Sprintf("bytes %d to %d were never written", f.FirstWrongByte,
		f.LastWrongByte)
}

func (c *classifier) foreign() string {
	if c.header.magic {
		return "data of another run"
	}
	return describe(c.data)
}

func describe(data []byte) string {
	for _, b := range data {
		if b != 0 {
			return "data from outside this run"
		}
	}
	return "zeroes"
}

// firstDifference returns the index of the first byte in which a and b, of the same length, differ,
// or that length if they are equal.
func firstDifference(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return len(a)
}

// lastDifference returns the index of the last byte in which a and b differ, or -1 if they are
// equal.
func lastDifference(a, b []byte) int {
	for i := len(a) - 1; i >= 0; i-- {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

// Kind is a class of wrong blocks.
type Kind string

const (
	// Lost is a block that was written but holds no data of this run.
	Lost Kind = "lost"
	// Stale is a block that holds the data of an earlier pass.
	Stale Kind = "stale"
	// Torn is a block whose beginning and end come from different writes.
	Torn Kind = "torn"
	// Misplaced is a block that holds data written to another offset.
	Misplaced Kind = "misplaced"
	// Poisoned is a block that was written from the buffer of no request.
	Poisoned Kind = "poisoned"
	// Late is a block whose buffer was written after the request for it had completed. The block
	// itself may be right.
	Late Kind = "late"
	// Corrupt is a block that holds data that was never written.
	Corrupt Kind = "corrupt"
)

// kinds lists all kinds.
var kinds = []Kind{Lost, Stale, Torn, Misplaced, Poisoned, Late, Corrupt}

// Finding describes a wrong block.
type Finding struct {
	Kind   Kind   `json:"kind"`
	Offset uint64 `json:"offset_bytes"` // of the block in the volume
	Queue  int    `json:"queue"`
	Pass   uint32 `json:"pass"` // that found it
	// ExpectedGeneration is the pass that last wrote the block.
	ExpectedGeneration uint32 `json:"expected_generation"`
	// Found is the block's own header, if it has one.
	Found *FoundHeader `json:"found,omitempty"`
	// FirstWrongByte and LastWrongByte delimit where the block differs from its expected content. A
	// torn block is torn at TornAtByte.
	FirstWrongByte int    `json:"first_wrong_byte"`
	LastWrongByte  int    `json:"last_wrong_byte"`
	TornAtByte     int    `json:"torn_at_byte,omitempty"`
	Detail         string `json:"detail"`
}

// FoundHeader is the header of a wrong block.
type FoundHeader struct {
	Run           string `json:"run"`
	Offset        uint64 `json:"offset_bytes"`
	Generation    uint32 `json:"generation"`
	ChecksumValid bool   `json:"checksum_valid"`
}

// String returns the finding as a sentence.
func (f *Finding) String() string {
	text := fmt.Sprintf("%s block at offset %d (queue %d, pass %d): expected generation %d, %s",
		f.Kind, f.Offset, f.Queue, f.Pass, f.ExpectedGeneration, f.Detail)
	if f.Found != nil {
		text += fmt.Sprintf("; its header says run %s, offset %d, generation %d, checksum %s",
			f.Found.Run, f.Found.Offset, f.Found.Generation, valid(f.Found.ChecksumValid))
	}
	return text
}

func valid(yes bool) string {
	if yes {
		return "valid"
	}
	return "wrong"
}

func runName(run uint64) string { return fmt.Sprintf("%016x", run) }
