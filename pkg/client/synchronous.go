// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
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
func (v *blocking) ReadAt(p []byte, off int64) (int, error) {
	return v.readAt(nil, vectorOf(p), off)
}

// ReadAtContext is ReadAt, except that it also returns when ctx ends, with the cause of that. Then
// it returns 0 bytes, and the content of p is undefined, but does not change any more.
func (v *blocking) ReadAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	return callUntil(ctx, func(c *call) (int, error) { return v.readAt(c, vectorOf(p), off) })
}

// ReadVAt is ReadAt into several slices, which it fills one after the other, as preadv(2) does. It
// takes no more requests than ReadAt for as many bytes, however small the slices are. The slices
// may have any lengths, and none may overlap another.
func (v *blocking) ReadVAt(p [][]byte, off int64) (int, error) {
	return v.readAt(nil, newVector(p), off)
}

// ReadVAtContext is ReadVAt, except that it also returns when ctx ends, as ReadAtContext does.
func (v *blocking) ReadVAtContext(ctx context.Context, p [][]byte, off int64) (int, error) {
	data := newVector(slices.Clone(p)) // the caller may change p when it has left
	return callUntil(ctx, func(c *call) (int, error) { return v.readAt(c, data, off) })
}

func (v *blocking) readAt(c *call, p vector, off int64) (int, error) {
	s, err := v.acquireSync()
	if err != nil {
		return 0, err
	}
	defer v.releaseSync()
	if off < 0 {
		return 0, status.Errorf(status.InvalidValue, "%s: the offset is negative",
			v.terms.describe(Read, off, int64(p.length)))
	}
	if uint64(off) >= v.terms.size.Load() {
		return 0, io.EOF
	}
	rest := v.terms.size.Load() - uint64(off)
	short := p.length > rest
	if short {
		p, _ = p.cut(rest)
	}
	r, err := s.beginRead(c, uint64(off), uint64(off)+p.length)
	if err != nil {
		return 0, err
	}
	defer s.endRead(c, r)
	n, err := s.transfer(c, p, uint64(off), 0, s.startRead, s.finishRead)
	if err == nil && short {
		err = io.EOF
	}
	return n, err
}

// WriteAt implements io.WriterAt for any offset and length within the volume. It writes a part of a
// block by reading, changing, and writing back the whole block. That never undoes a concurrent
// WriteAt, Trim, or WriteZeroes of this Volume, but it may undo a write to the same block by
// another client or through a Queue.
func (v *blocking) WriteAt(p []byte, off int64) (int, error) {
	return v.writeAt(nil, vectorOf(p), off, 0)
}

// WriteAtContext is WriteAt, except that it also returns when ctx ends, with the cause of that.
// Then it returns 0 bytes, and any part of p may have been written, or may be written later. The
// caller may use p again, and may write again: what it does next comes later. Calls of blocking
// methods for the same blocks, reads included, and all flushes wait until what was in progress has
// been carried out, or never will be because the session has ended.
func (v *blocking) WriteAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	return callUntil(ctx, func(c *call) (int, error) { return v.writeAt(c, vectorOf(p), off, 0) })
}

// WriteAtFUA is WriteAt, and returns when the data is durable, without a flush of anything else
// (force unit access). It fails with status.NotSupported if Info.CanFUA is not set: then write, and
// flush.
func (v *blocking) WriteAtFUA(p []byte, off int64) (int, error) {
	return v.writeAt(nil, vectorOf(p), off, FUA)
}

// WriteAtFUAContext is WriteAtFUA, except that it also returns when ctx ends, as WriteAtContext
// does.
func (v *blocking) WriteAtFUAContext(ctx context.Context, p []byte, off int64) (int, error) {
	return callUntil(ctx, func(c *call) (int, error) { return v.writeAt(c, vectorOf(p), off, FUA) })
}

// WriteVAt is WriteAt of several slices, one after the other, as pwritev(2) does. It takes no more
// requests than WriteAt of as many bytes, however small the slices are, which may have any lengths.
// Like WriteAt, it is not atomic.
func (v *blocking) WriteVAt(p [][]byte, off int64) (int, error) {
	return v.writeAt(nil, newVector(p), off, 0)
}

// WriteVAtContext is WriteVAt, except that it also returns when ctx ends, as WriteAtContext does.
func (v *blocking) WriteVAtContext(ctx context.Context, p [][]byte, off int64) (int, error) {
	data := newVector(slices.Clone(p)) // the caller may change p when it has left
	return callUntil(ctx, func(c *call) (int, error) { return v.writeAt(c, data, off, 0) })
}

func (v *blocking) writeAt(c *call, p vector, off int64, flags Flags) (int, error) {
	s, err := v.acquireSync()
	if err != nil {
		return 0, err
	}
	defer v.releaseSync()
	if err := v.terms.checkRange(Write, off, int64(p.length)); err != nil {
		return 0, err
	}
	if info := &v.life.session.Load().info; flags&FUA != 0 && !info.CanFUA && !info.ReadOnly {
		return 0, status.Errorf(status.NotSupported, "%s with FUA: the volume does not have that "+
			"(Info.CanFUA), so write and flush", v.terms.describe(Write, off, int64(p.length)))
	}
	return s.write(c, p, uint64(off), flags)
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
		slot.request.Flusher = nil
		s.release(c, slot)
	}()
	slot.request.Flusher = r.Flusher
	slot.start(c, r.Type, r.Flags, r.Offset, r.Length)
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
