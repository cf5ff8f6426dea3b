// SPDX-License-Identifier: Apache-2.0

package dmacopy

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"time"

	"github.com/zc-relay/zc-relay/cmd/internal/output"
	"github.com/zc-relay/zc-relay/pkg/status"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// input is the file on the side that has it.
type input struct {
	file     *os.File
	path     string
	size     uint64
	modified time.Time
	checksum uint32 // CRC32C of the data read so far
}

// openInput opens the file. It returns nil if there is none.
func openInput(path string) (*input, error) {
	about, err := os.Stat(path) // opening a pipe would wait for its writer
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("examine file: %w", err)
	}
	if !about.Mode().IsRegular() {
		return nil, status.Errorf(status.InvalidValue, "%q is not a regular file", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read file: %w", err)
	}
	if about, err = file.Stat(); err != nil {
		return nil, errors.Join(fmt.Errorf("examine file: %w", err), file.Close())
	}
	return &input{file: file, path: path, size: uint64(about.Size()), modified: about.ModTime()},
		nil
}

// read fills b with the next bytes of the file.
func (i *input) read(b []byte) error {
	_, err := io.ReadFull(i.file, b)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return i.changed()
	}
	if err != nil {
		return status.Errorf(status.IOFailed, "read file: %w", err)
	}
	i.checksum = crc32.Update(i.checksum, castagnoli, b)
	return nil
}

// unchanged fails if the file was written to after it was opened.
func (i *input) unchanged() error {
	about, err := i.file.Stat()
	if err != nil {
		return fmt.Errorf("examine file: %w", err)
	}
	if uint64(about.Size()) != i.size || !about.ModTime().Equal(i.modified) {
		return i.changed()
	}
	return nil
}

func (i *input) changed() error {
	return status.Errorf(status.IOFailed,
		"%q changed while it was copied: try again when nothing writes to it", i.path)
}

func (i *input) close() {
	if i != nil {
		_ = i.file.Close()
	}
}

// sink is the file on the side that receives it.
type sink struct {
	plan     plan
	file     *output.File
	config   *Config
	chunk    uint64 // expected next
	moved    uint64
	checksum uint32 // CRC32C of the data written so far
}

func newSink(p plan, config *Config) (*sink, error) {
	file, err := output.Create(config.Path)
	if err != nil {
		return nil, err
	}
	return &sink{plan: p, file: file, config: config}, nil
}

// expect fails unless m announces the next chunk.
func (s *sink) expect(m filled) error {
	if m.chunk != s.chunk || m.chunk >= s.plan.chunks() || m.length != s.plan.length(m.chunk) {
		return status.Errorf(status.Unexpected,
			"chunk %d of %d bytes was sent; there are %d chunks, and the next is %d", m.chunk,
			m.length, s.plan.chunks(), s.chunk)
	}
	s.chunk++
	return nil
}

// write appends a chunk that was copied to b, if its checksum is right.
func (s *sink) write(m filled, b []byte) error {
	s.checksum = crc32.Update(s.checksum, castagnoli, b)
	if s.checksum != m.checksum {
		return status.Errorf(status.IOFailed,
			"bytes %d to %d arrived corrupted: checksum %#08x instead of %#08x",
			s.moved, s.moved+m.length, s.checksum, m.checksum)
	}
	if _, err := s.file.Sink().Write(b); err != nil {
		return status.Errorf(status.IOFailed, "write file: %w", err)
	}
	s.moved += m.length
	s.config.observe(s.moved, s.plan.size)
	return nil
}

// finish gives the file its name if all of it has arrived without an error.
func (s *sink) finish(m end, err error) error {
	if err == nil && (s.moved != s.plan.size || m.size != s.moved || m.checksum != s.checksum) {
		err = status.Errorf(status.IOFailed,
			"%d bytes with checksum %#08x arrived, but %d with %#08x were sent", s.moved,
			s.checksum, m.size, m.checksum)
	}
	return s.file.Finish(err)
}
