package client

import "github.com/zc-relay/zc-relay/pkg/iomsg"

// beginWrite starts a piece that consists of whole blocks. Pieces that change
// only a part of a block need several steps and are done in endWrite.
func (s *synchronous) beginWrite(p *piece) {
	if s.partial(p) {
		return
	}
	copy(p.slot.buffer, p.data)
	p.slot.begin(iomsg.Write, p.offset, uint32(len(p.data)))
}

func (s *synchronous) endWrite(p *piece) error {
	if s.partial(p) {
		return s.readModifyWrite(p)
	}
	return p.slot.wait()
}

// partial reports whether a piece begins or ends inside a block.
func (s *synchronous) partial(p *piece) bool {
	start, length := s.span(p)
	return start != p.offset || uint64(length) != uint64(len(p.data))
}

// readModifyWrite writes a piece that begins or ends inside a block. The
// blocks at its ends are locked against other writes of a part of them.
func (s *synchronous) readModifyWrite(p *piece) error {
	start, length := s.span(p)
	block := uint64(s.volume.info.BlockSize)
	first, last := start, start+uint64(length)-block
	s.blocks.lock(first)
	defer s.blocks.unlock(first)
	if last != first {
		// Always upwards, so that no two writers wait for each other.
		s.blocks.lock(last)
		defer s.blocks.unlock(last)
	}
	p.slot.begin(iomsg.Read, start, length)
	if err := p.slot.wait(); err != nil {
		return err
	}
	copy(p.slot.buffer[p.offset-start:], p.data)
	p.slot.begin(iomsg.Write, start, length)
	return p.slot.wait()
}
