// SPDX-License-Identifier: Apache-2.0

package client

import "errors"

// write writes the partial block at the start, the whole blocks, and the partial block at the end,
// one after the other.
func (s *syncIO) write(c *call, p vector, offset uint64, flags Flags) (int, error) {
	block := uint64(s.terms.info.BlockSize)
	begin := offset
	if inside := offset % block; inside > 0 && p.length > 0 {
		head, rest := p.cut(min(p.length, block-inside))
		if err := s.writePart(c, head, offset, flags); err != nil {
			return 0, err
		}
		p, offset = rest, offset+head.length
	}
	if whole := p.length &^ (block - 1); whole > 0 {
		blocks, rest := p.cut(whole)
		n, err := s.writeBlocks(c, blocks, offset, flags)
		if offset += uint64(n); err != nil {
			return int(offset - begin), err
		}
		p = rest
	}
	if p.length > 0 {
		if err := s.writePart(c, p, offset, flags); err != nil {
			return int(offset - begin), err
		}
	}
	return int(offset + p.length - begin), nil
}

// writeBlocks writes whole blocks.
func (s *syncIO) writeBlocks(c *call, p vector, offset uint64, flags Flags) (int, error) {
	held, err := c.lock(&s.ranges, offset, offset+p.length)
	if err != nil {
		return 0, err
	}
	defer c.unlock(&s.ranges, held)
	return s.transfer(c, p, offset, flags, s.startWrite, s.finishWrite)
}

// writePart writes a part of one block.
func (s *syncIO) writePart(c *call, p vector, offset uint64, flags Flags) error {
	block := uint64(s.terms.info.BlockSize)
	start := offset &^ (block - 1)
	held, err := c.lock(&s.ranges, start, start+block)
	if err != nil {
		return err
	}
	defer c.unlock(&s.ranges, held)
	slot, err := s.acquire(c)
	if err != nil {
		return err
	}
	defer s.release(c, slot)
	slot.start(c, Read, 0, start, uint32(block))
	if err := slot.wait(); err != nil {
		return err
	}
	if err := c.touch(func() { p.copyTo(slot.buffer[offset-start:]) }); err != nil {
		return err
	}
	slot.start(c, Write, flags, start, uint32(block))
	return slot.wait()
}

// piece is a part of a transfer that fits into one slot's buffer.
type piece struct {
	slot   *syncSlot
	call   *call
	data   vector // the caller's
	offset uint64 // position of data in the volume, in bytes
	flags  Flags
}

// transfer splits a read or write into pieces and keeps several of them in flight. It returns how
// many bytes from the start were transferred without a gap.
func (s *syncIO) transfer(
	c *call, p vector, offset uint64, flags Flags, start, finish func(*piece) error,
) (int, error) {
	var pending []piece
	var failure error
	done := 0
	for p.length > 0 || len(pending) > 0 {
		slot, err := s.nextSlot(c, p.length > 0 && failure == nil, len(pending) == 0)
		if err != nil {
			return done, err
		}
		if slot == nil {
			oldest := pending[0]
			pending = pending[1:]
			err := finish(&oldest)
			s.release(c, oldest.slot)
			if failure = errors.Join(failure, err); failure != nil {
				p = vector{} // start nothing more
			} else {
				done += int(oldest.data.length)
			}
			continue
		}
		n := min(p.length, uint64(len(slot.buffer))-offset%uint64(s.terms.info.BlockSize))
		data, rest := p.cut(n)
		next := piece{slot: slot, call: c, data: data, offset: offset, flags: flags}
		if failure = start(&next); failure != nil {
			s.release(c, slot)
			p = vector{}
			continue
		}
		pending = append(pending, next)
		p, offset = rest, offset+n
	}
	return done, failure
}

// nextSlot returns a free slot if one is wanted, or nil. Only a call that holds no slot may wait
// for one: otherwise it could wait for itself. Without a slot it fails if the caller has left.
func (s *syncIO) nextSlot(c *call, wanted, mayWait bool) (*syncSlot, error) {
	if !wanted {
		return nil, nil
	}
	if mayWait {
		return s.acquire(c)
	}
	select {
	case slot := <-s.free:
		if s.lend(c, slot) {
			return slot, nil
		}
	default:
	}
	return nil, nil
}

// span returns the whole blocks that contain a piece.
func (s *syncIO) span(p *piece) (start uint64, length uint32) {
	block := uint64(s.terms.info.BlockSize)
	start = p.offset &^ (block - 1)
	end := (p.offset + p.data.length + block - 1) &^ (block - 1)
	return start, uint32(end - start)
}

func (s *syncIO) startRead(p *piece) error {
	if err := p.call.err(); err != nil {
		return err
	}
	start, length := s.span(p)
	p.slot.start(p.call, Read, 0, start, length)
	return nil
}

func (s *syncIO) finishRead(p *piece) error {
	if err := p.slot.wait(); err != nil {
		return err
	}
	start, _ := s.span(p)
	return p.call.touch(func() { p.data.copyFrom(p.slot.buffer[p.offset-start:]) })
}

func (s *syncIO) startWrite(p *piece) error {
	if err := p.call.touch(func() { p.data.copyTo(p.slot.buffer) }); err != nil {
		return err
	}
	p.slot.start(p.call, Write, p.flags, p.offset, uint32(p.data.length))
	return nil
}

func (s *syncIO) finishWrite(p *piece) error { return p.slot.wait() }
