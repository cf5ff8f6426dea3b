// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/cmd/internal/program"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// UnknownSize is the size of a stream whose end is found by reading it.
const UnknownSize = ^uint64(0)

// Put writes a stream to the volume, starting at offset, and flushes. Neither offset nor the
// stream's size needs to be a multiple of the block size. Put checks a known size before it writes
// anything; a stream that does not fit is a usage error. A stream of unknown size fails when the
// volume is full. Put returns the number of bytes written.
func Put(ctx context.Context, config Config, source io.Reader, size,
	offset uint64) (uint64, error) {
	info := config.Volume.Info()
	if err := fits(&info, size, offset); err != nil {
		return 0, program.Usage(err)
	}
	p := &put{
		volume: config.Volume, source: source, start: offset, offset: offset,
		end:       offset + min(size, info.Size-offset),
		blockSize: uint64(info.BlockSize), zeroes: info.CanWriteZeroes,
	}
	err := p.run(ctx, config)
	if moved := p.moved.Load(); err == nil && size != UnknownSize && moved < size {
		err = fmt.Errorf("input ended before its %d bytes: %w", size, io.ErrUnexpectedEOF)
	}
	if err != nil {
		return p.moved.Load(), incomplete(fmt.Sprintf("write to volume %q", info.Name), &p.moved,
			err)
	}
	return p.moved.Load(), nil
}

// fits fails if it is clear from the start that the stream does not fit.
func fits(info *client.Info, size, offset uint64) error {
	if info.ReadOnly {
		return status.Errorf(status.NotPermitted, "volume %q is read-only", info.Name)
	}
	if offset > info.Size {
		return status.Errorf(status.InvalidValue,
			"offset %d is past the end of volume %q of %d bytes", offset, info.Name, info.Size)
	}
	if space := info.Size - offset; size != UnknownSize && size > space {
		return status.Errorf(status.TooBig,
			"%d bytes do not fit into volume %q of %d bytes: there is room for %[5]d from offset %[4]d on; nothing was written",
			size, info.Name, info.Size, offset, space)
	}
	return nil
}

// put is a stream in transfer to the volume. WriteAt writes the partial blocks at its ends, after
// it has read the rest of those blocks.
type put struct {
	volume    Volume
	blockSize uint64
	zeroes    bool // the volume can write zeroes without data
	moved     atomic.Uint64
	start     uint64 // offset of the first byte
	frontier  *frontier

	mu     sync.Mutex // guards the fields below
	source io.Reader
	offset uint64 // in the volume, of the next byte from source
	end    uint64 // where the stream or the volume ends
	ended  bool   // source has ended
	tail   []byte // the last bytes, less than a block
}

func (p *put) run(ctx context.Context, config Config) error {
	if err := p.putHead(); err != nil {
		return err
	}
	p.frontier = newFrontier(p.offset)
	if err := config.execute(ctx, p, &p.moved); err != nil {
		return err
	}
	if err := p.putTail(); err != nil {
		return err
	}
	if err := p.volume.Flush(); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	return nil
}

// putHead writes up to the first block boundary.
func (p *put) putHead() error {
	missing := p.offset % p.blockSize
	if missing == 0 {
		return nil
	}
	head := make([]byte, min(p.blockSize-missing, p.end-p.offset))
	n, err := p.read(head)
	if err != nil {
		return err
	}
	start := p.offset
	p.offset += uint64(n)
	return p.writeAt(head[:n], start)
}

// putTail writes the bytes after the last whole block, and fails if the source has more.
func (p *put) putTail() error {
	if len(p.tail) > 0 {
		if err := p.writeAt(p.tail, p.offset-uint64(len(p.tail))); err != nil {
			return err
		}
	}
	if p.ended || p.offset < p.volume.Info().Size {
		return nil
	}
	var more [1]byte
	if n, _ := io.ReadFull(p.source, more[:]); n > 0 {
		return status.Errorf(status.TooBig, "the input continues past the end of the volume")
	}
	return nil
}

func (p *put) writeAt(data []byte, offset uint64) error {
	n, err := p.volume.WriteAt(data, int64(offset))
	p.moved.Add(uint64(n))
	return err
}

// read fills data until the source ends.
func (p *put) read(data []byte) (int, error) {
	n, err := io.ReadFull(p.source, data)
	switch {
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		p.ended = true
		return n, nil
	case err != nil:
		return n, fmt.Errorf("read input: %w", err)
	}
	return n, nil
}

func (p *put) kind() client.RequestType { return client.Write }

func (p *put) next(buffer []byte) (extent, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended || p.offset == p.end {
		return extent{}, nil
	}
	n, err := p.read(buffer[:min(uint64(len(buffer)), p.end-p.offset)])
	if err != nil {
		return extent{}, err
	}
	start := p.offset
	p.offset += uint64(n)
	whole := uint64(n) &^ (p.blockSize - 1)
	if whole < uint64(n) {
		p.tail = append([]byte(nil), buffer[whole:n]...)
	}
	return extent{offset: start, length: uint32(whole),
		zero: p.zeroes && whole > 0 && isZero(buffer[:whole])}, nil
}

func (p *put) done(e extent, _ []byte) error {
	p.moved.Add(uint64(e.length))
	p.frontier.add(e.offset, e.end())
	return nil
}

// checkpoint flushes the volume.
func (p *put) checkpoint() (uint64, error) {
	position := p.frontier.position()
	return position - p.start, p.volume.Flush()
}
