// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// validation compares the data of a thread's reads with its expected content. Each slot reads back
// at once what it wrote; it has its own part of the range, so that nothing else changes the data in
// between.
type validation struct {
	content content
	spans   []span // of each slot; nil if the run only reads
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

// offset returns the offset of a slot's next request.
func (v *validation) offset(slot uint32) uint64 {
	if v.spans == nil {
		return v.random.offset(slot)
	}
	part := v.spans[slot]
	block := v.rounds[slot] % part.blocks
	if !v.random.sequential {
		block = below(v.random.random, part.blocks)
	}
	return part.start + block*v.random.blockSize
}

// prepare fills the buffer of a request: with the data of a write, or with zeroes for a read, so
// that old content cannot pass for data that was read.
func (v *validation) prepare(t client.RequestType, slot uint32, offset uint64,
	buffer []byte) error {
	if t == client.Read {
		clear(buffer)
		return nil
	}
	v.rounds[slot]++
	return v.content.fill(buffer, offset, v.rounds[slot])
}

// check compares data read from offset with the slot's last write there.
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
	return &mismatch{offset: offset, length: len(buffer), position: i, found: buffer[i],
		expected: v.scratch[i]}, nil
}

// finish processes a successful request with validation. It returns true if the slot continues by
// reading back its write.
func (w *worker) finish(index uint32, nowNs int64) bool {
	s := &w.slots[index]
	if !s.readBack {
		w.recorder.record(s.kind, nowNs-s.sinceNs)
	}
	if s.kind == client.Write {
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

// readBack makes slot index read what it wrote, unless the run has failed.
func (w *worker) readBack(index uint32) bool {
	if w.failure.err != nil {
		return false
	}
	s := &w.slots[index]
	s.kind, s.readBack, s.repeated = client.Read, true, false
	clear(w.buffer(index))
	w.ready = append(w.ready, index)
	return true
}

// mismatch describes wrong data.
type mismatch struct {
	offset          uint64 // offset of the request in the volume
	length          int
	position        int // of the first wrong byte in the request
	found, expected byte
}

// Unwrap returns the status of a failed IO.
func (m *mismatch) Unwrap() error { return status.IOFailed }

func (m *mismatch) Error() string {
	return fmt.Sprintf("wrong data in %d bytes at offset %d: byte %d is %#02x instead of %#02x",
		m.length, m.offset, m.position, m.found, m.expected)
}

// content is the expected content of the volume.
type content interface {
	// fill generates the data at offset of the volume. round distinguishes successive writes.
	fill(data []byte, offset, round uint64) error
}

// pattern is content that differs for every offset and every write, so that it cannot be compressed
// or deduplicated.
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

// plainContent is content from a file that holds the whole volume, as the DOCA storage applications
// use it (--storage-plain-content).
type plainContent struct{ source io.ReaderAt }

func (c plainContent) fill(data []byte, offset, _ uint64) error {
	if _, err := c.source.ReadAt(data, int64(offset)); err != nil {
		return fmt.Errorf("read %d bytes at offset %d of the plain content: %w", len(data), offset,
			err)
	}
	return nil
}
