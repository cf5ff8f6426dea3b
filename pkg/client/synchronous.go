// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// blocking has the blocking methods of a Volume, which embeds it. They use nothing but a Queue of
// their own.
type blocking struct {
	common
	sync      atomic.Pointer[syncIO] // nil if there are no blocking methods, and after stopSync
	callers   sync.RWMutex           // read-locked while a blocking method runs
	everybody Flusher                // the user of Flush
}

// errNoSync returns why a volume has no blocking methods.
func (v *blocking) errNoSync() error {
	if v.life.isClosed() {
		return fmt.Errorf("volume %q: %w", v.terms.info.Name, ErrClosed)
	}
	return status.Errorf(status.BadState,
		"volume %q was opened without blocking methods (Config.SyncDepth is negative)",
		v.terms.info.Name)
}

// ReadAt implements io.ReaderAt for any offset and length; it returns io.EOF at the end of the
// volume. Requests larger than Info.BufferSize are split and carried out in parallel.
func (v *blocking) ReadAt(p []byte, off int64) (int, error) { return v.readAt(nil, p, off) }

func (v *blocking) readAt(c *call, p []byte, off int64) (int, error) {
	s, err := v.acquireSync()
	if err != nil {
		return 0, err
	}
	defer v.releaseSync()
	if off < 0 {
		return 0, status.Errorf(status.InvalidValue, "%s: the offset is negative",
			v.terms.describe(Read, off, int64(len(p))))
	}
	if uint64(off) >= v.terms.size.Load() {
		return 0, io.EOF
	}
	rest := v.terms.size.Load() - uint64(off)
	short := uint64(len(p)) > rest
	if short {
		p = p[:rest]
	}
	r, err := s.beginRead(c, uint64(off), uint64(off)+uint64(len(p)))
	if err != nil {
		return 0, err
	}
	defer s.endRead(c, r)
	n, err := s.transfer(c, p, uint64(off), s.startRead, s.finishRead)
	if err == nil && short {
		err = io.EOF
	}
	return n, err
}

// ReadAtContext is ReadAt, except that it also returns when ctx ends, with the cause of that. Then
// it returns 0 bytes, and the content of p is undefined, but does not change any more.
func (v *blocking) ReadAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	return callUntil(ctx, func(c *call) (int, error) { return v.readAt(c, p, off) })
}

// WriteAt implements io.WriterAt for any offset and length within the volume. It writes a part of a
// block by reading, changing, and writing back the whole block. That never undoes a concurrent
// WriteAt, Trim, or WriteZeroes of this Volume, but it may undo a write to the same block by
// another client or through a Queue.
func (v *blocking) WriteAt(p []byte, off int64) (int, error) { return v.writeAt(nil, p, off) }

func (v *blocking) writeAt(c *call, p []byte, off int64) (int, error) {
	s, err := v.acquireSync()
	if err != nil {
		return 0, err
	}
	defer v.releaseSync()
	if err := v.terms.checkRange(Write, off, int64(len(p))); err != nil {
		return 0, err
	}
	return s.write(c, p, uint64(off))
}

// WriteAtContext is WriteAt, except that it also returns when ctx ends, with the cause of that.
// Then it returns 0 bytes, and any part of p may have been written, or may be written later. The
// caller may use p again, and may write again: what it does next comes later. Calls of blocking
// methods for the same blocks, reads included, and all flushes wait until what was in progress has
// been carried out, or never will be because the session has ended.
func (v *blocking) WriteAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	return callUntil(ctx, func(c *call) (int, error) { return v.writeAt(c, p, off) })
}

// Flush makes all writes that completed before the call durable. Once writes may have been lost, it
// fails with ErrWritesLost for good, because the volume does not know which of its callers have
// learned of that. A program that goes on after a loss has a Flusher for each user.
func (v *blocking) Flush() error { return v.everybody.Flush() }

// FlushContext is Flush, except that it also returns when ctx ends, with the cause of that.
func (v *blocking) FlushContext(ctx context.Context) error { return v.everybody.FlushContext(ctx) }

// flush carries out a flush of a user, until ctx ends.
func (v *blocking) flush(ctx context.Context, f *Flusher) error {
	_, err := callUntil(ctx, func(c *call) (int, error) {
		attempt := &Flusher{attempt: f, seen: v.writes.lossesKnownTo(f)}
		err := v.submitAndWait(c, &Request{Type: Flush, Flusher: attempt})
		if c.end(0, err) == nil {
			v.writes.inform(f, attempt)
		}
		return 0, err
	})
	return err
}

// Trim discards the content of a range of whole blocks. What reads return afterwards is undefined.
func (v *blocking) Trim(off, length int64) error {
	return v.clearRange(nil, Trim, 0, off, length)
}

// TrimContext is Trim, except that it also returns when ctx ends, with the cause of that. Any part
// of the range may then have been trimmed, or may be trimmed later, with the consequences that
// WriteAtContext describes.
func (v *blocking) TrimContext(ctx context.Context, off, length int64) error {
	_, err := callUntil(ctx, func(c *call) (int, error) {
		return 0, v.clearRange(c, Trim, 0, off, length)
	})
	return err
}

// WriteZeroes makes a range of whole blocks read as zeroes. Where the volume can do that, the range
// keeps its space, so that later writes to it do not fail for lack of space.
func (v *blocking) WriteZeroes(off, length int64) error {
	return v.clearRange(nil, WriteZeroes, 0, off, length)
}

// WriteZeroesContext is WriteZeroes, except that it also returns when ctx ends, with the cause of
// that. Any part of the range may then have been zeroed, or may be zeroed later, with the
// consequences that WriteAtContext describes.
func (v *blocking) WriteZeroesContext(ctx context.Context, off, length int64) error {
	_, err := callUntil(ctx, func(c *call) (int, error) {
		return 0, v.clearRange(c, WriteZeroes, 0, off, length)
	})
	return err
}

// PunchHole makes a range of whole blocks read as zeroes, too, and frees its space where the volume
// can do that.
func (v *blocking) PunchHole(off, length int64) error {
	return v.clearRange(nil, WriteZeroes, Deallocate, off, length)
}

// PunchHoleContext is PunchHole, except that it also returns when ctx ends, as WriteZeroesContext
// does.
func (v *blocking) PunchHoleContext(ctx context.Context, off, length int64) error {
	_, err := callUntil(ctx, func(c *call) (int, error) {
		return 0, v.clearRange(c, WriteZeroes, Deallocate, off, length)
	})
	return err
}

// longestRange is the most bytes that a request without data may cover. It fits the 32-bit length
// field and is a multiple of every block size.
const longestRange = 1 << 30

// clearRange carries out a Trim or WriteZeroes in as many requests as it takes.
func (v *blocking) clearRange(c *call, t RequestType, flags Flags, off, length int64) error {
	if v.sync.Load() == nil {
		return v.errNoSync()
	}
	if err := v.terms.checkBlocks(t, off, length); err != nil {
		return err
	}
	for length > 0 {
		if err := c.err(); err != nil {
			return err
		}
		n := min(length, longestRange)
		r := Request{Type: t, Flags: flags, Offset: uint64(off), Length: uint32(n)}
		if err := v.submitAndWait(c, &r); err != nil {
			return err
		}
		off += n
		length -= n
	}
	return nil
}

// extentsAtOnce is how many extents one request of Extents returns.
const extentsAtOnce = 256

// longestExtents is the most bytes that one request describes, so that none takes long.
const longestExtents = 64 << 30

// Extents describes a range of whole blocks by its extents, in order: where data is, and where
// holes are, which read as zeroes. Neighbors may be of the same kind. If the volume does not know
// (see Info.CanReportExtents), everything is data. What is written meanwhile may be missing.
func (v *blocking) Extents(off, length int64) ([]Extent, error) {
	return v.extents(nil, off, length)
}

// ExtentsContext is Extents, except that it also returns when ctx ends, with the cause of that.
func (v *blocking) ExtentsContext(ctx context.Context, off, length int64) ([]Extent, error) {
	var found []Extent
	_, err := callUntil(ctx, func(c *call) (int, error) {
		var err error
		found, err = v.extents(c, off, length)
		return 0, err
	})
	if err != nil {
		return nil, err // the call may still go on
	}
	return found, nil
}

func (v *blocking) extents(c *call, off, length int64) ([]Extent, error) {
	if v.sync.Load() == nil {
		return nil, v.errNoSync()
	}
	if err := v.terms.checkBlocks(Extents, off, length); err != nil || length == 0 {
		return nil, err
	}
	if !v.terms.info.CanReportExtents {
		return []Extent{{Length: uint64(length)}}, nil
	}
	s, err := v.acquireSync()
	if err != nil {
		return nil, err
	}
	defer v.releaseSync()
	r, err := s.beginRead(c, uint64(off), uint64(off)+uint64(length))
	if err != nil {
		return nil, err
	}
	defer s.endRead(c, r)
	slot, err := s.acquire(c)
	if err != nil {
		return nil, err
	}
	defer func() {
		slot.request.Range = 0
		s.release(c, slot)
	}()
	size := min(extentsAtOnce*ExtentSize, v.terms.info.BufferSize)
	var all []Extent
	for length > 0 {
		if err := c.err(); err != nil {
			return nil, err
		}
		slot.request.Range = uint64(min(length, longestExtents))
		slot.start(c, Extents, uint64(off), size)
		if err := slot.wait(); err != nil {
			return nil, err
		}
		found := len(all)
		all, err = DecodeExtents(all, slot.buffer[:size], slot.request.Range)
		if err != nil {
			return nil, fmt.Errorf("%v: %w", slot, err)
		}
		for _, e := range all[found:] {
			off, length = off+int64(e.Length), length-int64(e.Length)
		}
	}
	return all, nil
}

// submitAndWait carries out one request that moves no data.
func (v *blocking) submitAndWait(c *call, r *Request) error {
	s, err := v.acquireSync()
	if err != nil {
		return err
	}
	defer v.releaseSync()
	if r.Type == Flush {
		if !s.ranges.WaitToRead(0, math.MaxUint64, c.hasLeft()) {
			return c.err()
		}
	} else {
		held, err := c.lock(&s.ranges, r.Offset, r.Offset+uint64(r.Length))
		if err != nil {
			return err
		}
		defer c.unlock(&s.ranges, held)
	}
	slot, err := s.acquire(c)
	if err != nil {
		return err
	}
	defer func() {
		slot.request.Flags, slot.request.Flusher = 0, nil
		s.release(c, slot)
	}()
	slot.request.Flags, slot.request.Flusher = r.Flags, r.Flusher
	slot.start(c, r.Type, r.Offset, r.Length)
	return slot.wait()
}

// acquireSync returns the syncIO, which carries out blocking requests. If it succeeds, the caller
// must call releaseSync. The data memory stays allocated until then.
func (v *blocking) acquireSync() (*syncIO, error) {
	v.callers.RLock()
	s := v.sync.Load()
	if s == nil {
		v.callers.RUnlock()
		return nil, v.errNoSync()
	}
	return s, nil
}

func (v *blocking) releaseSync() { v.callers.RUnlock() }

// stopSync ends the thread of the blocking methods and transfers its queue to the caller. Blocking
// methods that still wait get ErrClosed; stopSync waits for them to return.
func (v *blocking) stopSync() {
	s := v.sync.Swap(nil)
	if s == nil {
		return
	}
	s.stop()
	v.callers.Lock()
	defer v.callers.Unlock()
}

// write writes the partial block at the start, the whole blocks, and the partial block at the end,
// one after the other.
func (s *syncIO) write(c *call, p []byte, offset uint64) (int, error) {
	block := uint64(s.terms.info.BlockSize)
	done := 0
	if inside := offset % block; inside > 0 && len(p) > 0 {
		head := p[:min(uint64(len(p)), block-inside)]
		if err := s.writePart(c, head, offset); err != nil {
			return 0, err
		}
		done = len(head)
	}
	whole := uint64(len(p)-done) &^ (block - 1)
	if whole > 0 {
		n, err := s.writeBlocks(c, p[done:][:whole], offset+uint64(done))
		if done += n; err != nil {
			return done, err
		}
	}
	if tail := p[done:]; len(tail) > 0 {
		if err := s.writePart(c, tail, offset+uint64(done)); err != nil {
			return done, err
		}
	}
	return len(p), nil
}

// writeBlocks writes whole blocks.
func (s *syncIO) writeBlocks(c *call, p []byte, offset uint64) (int, error) {
	held, err := c.lock(&s.ranges, offset, offset+uint64(len(p)))
	if err != nil {
		return 0, err
	}
	defer c.unlock(&s.ranges, held)
	return s.transfer(c, p, offset, s.startWrite, s.finishWrite)
}

// writePart writes a part of one block.
func (s *syncIO) writePart(c *call, p []byte, offset uint64) error {
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
	slot.start(c, Read, start, uint32(block))
	if err := slot.wait(); err != nil {
		return err
	}
	if err := c.copy(slot.buffer[offset-start:], p); err != nil {
		return err
	}
	slot.start(c, Write, start, uint32(block))
	return slot.wait()
}

// piece is a part of a transfer that fits into one slot's buffer.
type piece struct {
	slot   *syncSlot
	call   *call
	data   []byte // the caller's
	offset uint64 // position of data in the volume, in bytes
}

// transfer splits a read or write into pieces and keeps several of them in flight. It returns how
// many bytes from the start were transferred without a gap.
func (s *syncIO) transfer(
	c *call, p []byte, offset uint64, start, finish func(*piece) error,
) (int, error) {
	var pending []piece
	var failure error
	done := 0
	for len(p) > 0 || len(pending) > 0 {
		slot, err := s.nextSlot(c, len(p) > 0 && failure == nil, len(pending) == 0)
		if err != nil {
			return done, err
		}
		if slot == nil {
			oldest := pending[0]
			pending = pending[1:]
			err := finish(&oldest)
			s.release(c, oldest.slot)
			if failure = errors.Join(failure, err); failure != nil {
				p = nil // start nothing more
			} else {
				done += len(oldest.data)
			}
			continue
		}
		n := min(uint64(len(p)), uint64(len(slot.buffer))-offset%uint64(s.terms.info.BlockSize))
		next := piece{slot: slot, call: c, data: p[:n], offset: offset}
		if failure = start(&next); failure != nil {
			s.release(c, slot)
			p = nil
			continue
		}
		pending = append(pending, next)
		p, offset = p[n:], offset+n
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
	end := (p.offset + uint64(len(p.data)) + block - 1) &^ (block - 1)
	return start, uint32(end - start)
}

func (s *syncIO) startRead(p *piece) error {
	if err := p.call.err(); err != nil {
		return err
	}
	start, length := s.span(p)
	p.slot.start(p.call, Read, start, length)
	return nil
}

func (s *syncIO) finishRead(p *piece) error {
	if err := p.slot.wait(); err != nil {
		return err
	}
	start, _ := s.span(p)
	return p.call.copy(p.data, p.slot.buffer[p.offset-start:])
}

func (s *syncIO) startWrite(p *piece) error {
	if err := p.call.copy(p.slot.buffer, p.data); err != nil {
		return err
	}
	p.slot.start(p.call, Write, p.offset, uint32(len(p.data)))
	return nil
}

func (s *syncIO) finishWrite(p *piece) error { return p.slot.wait() }
