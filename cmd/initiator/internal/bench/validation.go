package bench

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// validation compares what a thread's requests read with what the volume must
// hold. What is written is read back at once, by the same slot; each slot has
// a part of the range of its own, so that nothing else changes it in between.
type validation struct {
	content content
	spans   []span // of each slot; nil if all of them may write the same content
	rounds  []uint64
	scratch []byte
	random  *generator
}

func newValidation(p *Parameters, thread int, content content, random *generator) *validation {
	v := &validation{
		content: content, rounds: make([]uint64, p.QueueDepth),
		scratch: make([]byte, p.BlockSize), random: random,
	}
	if !p.Pattern.Writes() {
		return v
	}
	for slot := range p.QueueDepth {
		part := uint64(thread)*uint64(p.QueueDepth) + uint64(slot)
		v.spans = append(v.spans, p.spanOf(part, p.slices()))
	}
	return v
}

// offset is where the next request of a slot goes.
func (v *validation) offset(slot uint32) uint64 {
	if v.spans == nil {
		return v.random.offset()
	}
	part := v.spans[slot]
	block := v.rounds[slot] % part.blocks
	if !v.random.sequential {
		block = below(v.random.random, part.blocks)
	}
	return part.start + block*v.random.blockSize
}

// prepare makes a buffer ready for a request of the given kind: with what is
// to be written, or with nothing that a read must find.
func (v *validation) prepare(t iomsg.Type, slot uint32, offset uint64, buffer []byte) error {
	if t == iomsg.Read {
		clear(buffer)
		return nil
	}
	v.rounds[slot]++
	return v.content.fill(buffer, offset, v.rounds[slot])
}

// check compares what was read from offset with the last that the slot wrote
// there.
func (v *validation) check(slot uint32, offset uint64, buffer []byte) (*mismatch, error) {
	if err := v.content.fill(v.scratch, offset, v.rounds[slot]); err != nil {
		return nil, err
	}
	if bytes.Equal(buffer, v.scratch) {
		return nil, nil
	}
	i := 0
	for buffer[i] == v.scratch[i] {
		i++
	}
	return &mismatch{offset: offset, length: len(buffer), position: i, found: buffer[i], expected: v.scratch[i]}, nil
}

// finish looks at the data of a successful request. It returns true if the
// slot goes on to read back what it wrote.
func (w *worker) finish(index uint32, nowNs int64) bool {
	s := &w.slots[index]
	if !s.readBack {
		w.recorder.record(s.kind, nowNs-s.sinceNs)
	}
	if s.kind == iomsg.Write {
		return w.readBack(index)
	}
	wrong, err := w.validation.check(index, s.offset, w.buffer(index))
	if err != nil {
		w.fail(err)
		return false
	}
	w.recorder.validated++
	if wrong != nil {
		w.mismatched(wrong)
	}
	return false
}

// readBack has slot index read what it wrote, unless the run has failed.
func (w *worker) readBack(index uint32) bool {
	if w.failure.err != nil {
		return false
	}
	s := &w.slots[index]
	s.kind, s.readBack, s.repeated = iomsg.Read, true, false
	clear(w.buffer(index))
	w.ready = append(w.ready, index)
	return true
}

// mismatch is data that is not what it must be.
type mismatch struct {
	offset          uint64 // of the request in the volume
	length          int
	position        int // of the first wrong byte in the request
	found, expected byte
}

// Unwrap gives wrong data the code of an IO that failed.
func (m *mismatch) Unwrap() error { return status.IOFailed }

func (m *mismatch) Error() string {
	return fmt.Sprintf("data mismatch in %d bytes at offset %d: byte %d is %#02x instead of %#02x",
		m.length, m.offset, m.position, m.found, m.expected)
}

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
