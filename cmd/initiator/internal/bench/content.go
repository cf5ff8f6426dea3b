package bench

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
)

// content is what a validated part of the volume holds.
type content interface {
	// fill makes the data that belongs at offset of the volume. round tells
	// successive writes apart.
	fill(data []byte, offset, round uint64) error
}

// pattern is content that differs with the place and with every write, and
// that nothing compresses or finds twice.
type pattern struct{ seed uint64 }

func (p pattern) fill(data []byte, offset, round uint64) error {
	var random rand.PCG
	random.Seed(p.seed^offset, round)
	fillRandom(data, &random)
	return nil
}

// fillRandom fills data, whose length is a multiple of 8.
func fillRandom(data []byte, random *rand.PCG) {
	for ; len(data) >= 8; data = data[8:] {
		binary.LittleEndian.PutUint64(data, random.Uint64())
	}
}

// plainContent is the content that the whole volume is known to have, as a
// file of the DOCA storage applications holds it (--storage-plain-content).
type plainContent struct{ source io.ReaderAt }

func (c plainContent) fill(data []byte, offset, _ uint64) error {
	if _, err := c.source.ReadAt(data, int64(offset)); err != nil {
		return fmt.Errorf("read %d bytes at offset %d of the plain content: %w", len(data), offset, err)
	}
	return nil
}
