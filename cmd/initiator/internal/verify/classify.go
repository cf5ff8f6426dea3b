package verify

import (
	"bytes"
	"fmt"
)

// olderGenerations is how far back the second half of a torn block is looked
// for.
const olderGenerations = 64

// classify says what is wrong with data, which is not the block want.
func classify(data []byte, want identity) Finding {
	c := &classifier{data: data, want: want, header: parseHeader(data)}
	expected := c.render(want)
	f := Finding{
		Offset: want.offset, ExpectedGeneration: want.generation,
		FirstWrongByte: firstDifference(data, expected), LastWrongByte: lastDifference(data, expected),
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

// classifier compares a block with others that it might be made of.
type classifier struct {
	data   []byte
	want   identity
	header header
}

// render is the block with the given identity.
func (c *classifier) render(id identity) []byte {
	block := make([]byte, len(c.data))
	id.stamp(block)
	return block
}

func (c *classifier) judge(f *Finding) {
	ours := c.header.magic && c.header.run == c.want.run
	switch {
	case ours && c.header.intact(c.data):
		c.judgeIntact(f)
	case ours:
		c.judgeBroken(f)
	default:
		c.judgeForeign(f)
	}
}

// judgeIntact is for a block that this run has written, as a whole.
func (c *classifier) judgeIntact(f *Finding) {
	switch {
	case c.header.offset != c.want.offset:
		f.Kind, f.Detail = Misplaced, fmt.Sprintf("holds what was written to offset %d in pass %d", c.header.offset, c.header.generation)
	case c.header.generation < c.want.generation:
		f.Kind, f.Detail = Stale, fmt.Sprintf("holds what pass %d has written", c.header.generation)
	default:
		f.Kind, f.Detail = Corrupt, fmt.Sprintf("claims to be of pass %d, which has not written it yet", c.header.generation)
	}
}

// judgeBroken is for a block that begins like one of this run. A header that
// is wrong in itself says nothing of where the data comes from.
func (c *classifier) judgeBroken(f *Finding) {
	if f.LastWrongByte < headerSize {
		f.judgeCorrupt()
		return
	}
	begins := c.render(c.header.identity)
	first, last := firstDifference(c.data, begins), lastDifference(c.data, begins)
	if other, ok := c.endsLike(first); ok {
		f.Kind, f.TornAtByte = Torn, first
		f.Detail = fmt.Sprintf("begins as generation %d and continues as generation %d from byte %d on", c.header.generation, other, first)
		return
	}
	if first >= headerSize && last >= len(c.data)-8 {
		f.Kind, f.TornAtByte = Torn, first
		f.Detail = fmt.Sprintf("begins as generation %d and continues with %s from byte %d on", c.header.generation, describe(c.data[first:]), first)
		return
	}
	f.judgeCorrupt()
}

// endsLike looks for the version of the block of which everything from byte
// first on is.
func (c *classifier) endsLike(first int) (generation uint32, ok bool) {
	if first == 0 || first >= len(c.data)-8 {
		return 0, false // some bytes are alike by chance
	}
	for id := c.want; id.generation > 0 && c.want.generation-id.generation < olderGenerations; id.generation-- {
		if id != c.header.identity && bytes.Equal(c.data[first:], c.render(id)[first:]) {
			return id.generation, true
		}
	}
	return 0, false
}

// judgeForeign is for a block that does not begin like one of this run.
func (c *classifier) judgeForeign(f *Finding) {
	rest := f.LastWrongByte + 1
	switch {
	case rest > len(c.data)-8:
		f.Kind, f.Detail = Lost, "holds "+c.foreign()
	case f.FirstWrongByte == 0 && rest >= headerSize:
		f.Kind, f.TornAtByte = Torn, rest
		f.Detail = fmt.Sprintf("begins with %s and is as expected from byte %d on", describe(c.data[:rest]), rest)
	default:
		f.judgeCorrupt()
	}
}

func (f *Finding) judgeCorrupt() {
	f.Kind, f.Detail = Corrupt, fmt.Sprintf("bytes %d to %d are what nobody has written", f.FirstWrongByte, f.LastWrongByte)
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
			return "data that is not of this run"
		}
	}
	return "zeroes"
}

// firstDifference is the index of the first byte in which a and b, of the
// same length, differ; that length if they do not.
func firstDifference(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return len(a)
}

// lastDifference is the index of the last byte in which a and b differ, -1 if
// they do not.
func lastDifference(a, b []byte) int {
	for i := len(a) - 1; i >= 0; i-- {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}
