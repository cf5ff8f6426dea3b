package client

import (
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// WriteAt implements io.WriterAt for any offset and length within the volume.
// A part of a block is written by reading, changing and writing back the
// block; concurrent changes by this Volume do not disturb each other in that,
// those of other clients to the same block do.
func (v *Volume) WriteAt(p []byte, off int64) (int, error) {
	s, err := v.useSynchronous()
	if err != nil {
		return 0, err
	}
	defer v.doneSynchronous()
	if off < 0 || uint64(off) > v.info.Size || uint64(len(p)) > v.info.Size-uint64(off) {
		return 0, status.Errorf(status.InvalidValue, "write of %d bytes at offset %d is outside the volume of %d bytes", len(p), off, v.info.Size)
	}
	return s.write(p, uint64(off))
}

// write does the part of a block at the start, the whole blocks, and the part
// of a block at the end, one after the other.
func (s *synchronous) write(p []byte, offset uint64) (int, error) {
	block := uint64(s.volume.info.BlockSize)
	done := 0
	if inside := offset % block; inside > 0 && len(p) > 0 {
		head := p[:min(uint64(len(p)), block-inside)]
		if err := s.writePart(head, offset); err != nil {
			return 0, err
		}
		done = len(head)
	}
	whole := uint64(len(p)-done) &^ (block - 1)
	if whole > 0 {
		n, err := s.writeBlocks(p[done:][:whole], offset+uint64(done))
		if done += n; err != nil {
			return done, err
		}
	}
	if tail := p[done:]; len(tail) > 0 {
		if err := s.writePart(tail, offset+uint64(done)); err != nil {
			return done, err
		}
	}
	return len(p), nil
}

// writeBlocks writes whole blocks.
func (s *synchronous) writeBlocks(p []byte, offset uint64) (int, error) {
	held := s.ranges.lock(offset, offset+uint64(len(p)), false)
	defer s.ranges.unlock(held)
	return s.transfer(p, offset, s.beginWrite, s.endWrite)
}

func (s *synchronous) beginWrite(p *piece) {
	copy(p.slot.buffer, p.data)
	p.slot.begin(iomsg.Write, p.offset, uint32(len(p.data)))
}

func (s *synchronous) endWrite(p *piece) error { return p.slot.wait() }

// writePart writes a part of one block.
func (s *synchronous) writePart(p []byte, offset uint64) error {
	block := uint64(s.volume.info.BlockSize)
	start := offset &^ (block - 1)
	held := s.ranges.lock(start, start+block, true)
	defer s.ranges.unlock(held)
	slot := <-s.free
	defer func() { s.free <- slot }()
	slot.begin(iomsg.Read, start, uint32(block))
	if err := slot.wait(); err != nil {
		return err
	}
	copy(slot.buffer[offset-start:], p)
	slot.begin(iomsg.Write, start, uint32(block))
	return slot.wait()
}
