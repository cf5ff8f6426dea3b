package client

import (
	"errors"
	"io"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// errNoSync is returned by the synchronous methods of a volume that was
// opened without them.
var errNoSync = status.Errorf(status.BadState, "the volume was opened without synchronous requests, or is closed")

// ReadAt implements io.ReaderAt: any offset and length, io.EOF at the end of
// the volume. Requests larger than Info.BufferSize are split and carried out
// in parallel.
func (v *Volume) ReadAt(p []byte, off int64) (int, error) {
	s, err := v.useSynchronous()
	if err != nil {
		return 0, err
	}
	defer v.doneSynchronous()
	if off < 0 {
		return 0, status.Errorf(status.InvalidValue, "read at negative offset %d", off)
	}
	if uint64(off) >= v.info.Size {
		return 0, io.EOF
	}
	rest := v.info.Size - uint64(off)
	short := uint64(len(p)) > rest
	if short {
		p = p[:rest]
	}
	n, err := s.transfer(p, uint64(off), s.beginRead, s.endRead)
	if err == nil && short {
		err = io.EOF
	}
	return n, err
}

// Flush makes all writes that were completed before durable.
func (v *Volume) Flush() error { return v.simple(iomsg.Flush, 0, 0) }

// Trim gives up the content of a range of whole blocks: what is read from it
// afterwards is undefined.
func (v *Volume) Trim(off, length int64) error { return v.ranged(iomsg.Trim, off, length) }

// WriteZeroes makes a range of whole blocks read as zeroes.
func (v *Volume) WriteZeroes(off, length int64) error {
	return v.ranged(iomsg.WriteZeroes, off, length)
}

// longestRange keeps the length of a request that moves no data within its
// 32 bits, at a multiple of any block size.
const longestRange = 1 << 30

func (v *Volume) ranged(t iomsg.Type, off, length int64) error {
	if off < 0 || length < 0 || uint64(off) > v.info.Size || uint64(length) > v.info.Size-uint64(off) {
		return status.Errorf(status.InvalidValue, "%v of %d bytes at offset %d is outside the volume of %d bytes", t, length, off, v.info.Size)
	}
	block := int64(v.info.BlockSize)
	if off%block != 0 || length%block != 0 {
		return status.Errorf(status.InvalidValue, "%v of %d bytes at offset %d is not a range of whole blocks of %d bytes", t, length, off, block)
	}
	for length > 0 {
		n := min(length, longestRange)
		if err := v.simple(t, uint64(off), uint32(n)); err != nil {
			return err
		}
		off += n
		length -= n
	}
	return nil
}

// simple carries out one request that moves no data.
func (v *Volume) simple(t iomsg.Type, offset uint64, length uint32) error {
	s, err := v.useSynchronous()
	if err != nil {
		return err
	}
	defer v.doneSynchronous()
	if length > 0 {
		held := s.ranges.lock(offset, offset+uint64(length), false)
		defer s.ranges.unlock(held)
	}
	slot := <-s.free
	defer func() { s.free <- slot }()
	slot.begin(t, offset, length)
	return slot.wait()
}

// piece is a part of a transfer that fits a slot's buffer.
type piece struct {
	slot   *syncSlot
	data   []byte // the caller's
	offset uint64 // of data in the volume
}

// transfer splits a request into pieces and keeps several of them under way.
// It returns how many bytes were transferred without a gap from the start.
func (s *synchronous) transfer(p []byte, offset uint64, begin func(*piece), end func(*piece) error) (int, error) {
	var pending []piece
	var failure error
	done := 0
	for len(p) > 0 || len(pending) > 0 {
		slot := s.nextSlot(len(p) > 0 && failure == nil, len(pending) == 0)
		if slot == nil {
			if err := s.finish(&pending[0], end); err != nil {
				failure = errors.Join(failure, err)
			} else if failure == nil {
				done += len(pending[0].data)
			}
			pending = pending[1:]
			if failure != nil {
				p = nil
			}
			continue
		}
		n := min(uint64(len(p)), uint64(len(slot.buffer))-offset%uint64(s.volume.info.BlockSize))
		pending = append(pending, piece{slot: slot, data: p[:n], offset: offset})
		p, offset = p[n:], offset+n
		begin(&pending[len(pending)-1])
	}
	return done, failure
}

// nextSlot takes a free slot if one is wanted. Only a caller that holds none
// waits for one: it would wait for itself.
func (s *synchronous) nextSlot(wanted, mayWait bool) *syncSlot {
	if !wanted {
		return nil
	}
	if mayWait {
		return <-s.free
	}
	select {
	case slot := <-s.free:
		return slot
	default:
		return nil
	}
}

// finish waits for a piece and frees its slot.
func (s *synchronous) finish(p *piece, end func(*piece) error) error {
	defer func() { s.free <- p.slot }()
	return end(p)
}

// span is the range of whole blocks around a piece.
func (s *synchronous) span(p *piece) (start uint64, length uint32) {
	block := uint64(s.volume.info.BlockSize)
	start = p.offset &^ (block - 1)
	end := (p.offset + uint64(len(p.data)) + block - 1) &^ (block - 1)
	return start, uint32(end - start)
}

func (s *synchronous) beginRead(p *piece) {
	start, length := s.span(p)
	p.slot.begin(iomsg.Read, start, length)
}

func (s *synchronous) endRead(p *piece) error {
	if err := p.slot.wait(); err != nil {
		return err
	}
	start, _ := s.span(p)
	copy(p.data, p.slot.buffer[p.offset-start:])
	return nil
}
