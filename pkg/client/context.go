package client

import (
	"context"
	"sync"

	"github.com/zc-relay/zc-relay/internal/rangelock"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
)

// ReadAtContext is ReadAt, except that it also returns when ctx ends, with the cause of that. Then
// it returns 0 bytes, and the content of p is undefined, but does not change any more.
func (v *Volume) ReadAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	return during(ctx, func(c *call) (int, error) { return v.readAt(c, p, off) })
}

// WriteAtContext is WriteAt, except that it also returns when ctx ends, with the cause of that.
// Then it returns 0 bytes, and any part of p may have been written, or may be written later. The
// caller may use p again, and may write again: what it does next comes later. Calls of blocking
// methods for the same blocks, reads included, and all flushes wait until what was in progress has
// been carried out, or never will be because the session has ended.
func (v *Volume) WriteAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	return during(ctx, func(c *call) (int, error) { return v.writeAt(c, p, off) })
}

// FlushContext is Flush, except that it also returns when ctx ends, with the cause of that.
func (v *Volume) FlushContext(ctx context.Context) error { return v.everybody.FlushContext(ctx) }

// TrimContext is Trim, except that it also returns when ctx ends, with the cause of that. Any part
// of the range may then have been trimmed, or may be trimmed later, with the consequences that
// WriteAtContext describes.
func (v *Volume) TrimContext(ctx context.Context, off, length int64) error {
	_, err := during(ctx, func(c *call) (int, error) {
		return 0, v.clearRange(c, iomsg.Trim, 0, off, length)
	})
	return err
}

// WriteZeroesContext is WriteZeroes, except that it also returns when ctx ends, with the cause of
// that. Any part of the range may then have been zeroed, or may be zeroed later, with the
// consequences that WriteAtContext describes.
func (v *Volume) WriteZeroesContext(ctx context.Context, off, length int64) error {
	_, err := during(ctx, func(c *call) (int, error) {
		return 0, v.clearRange(c, iomsg.WriteZeroes, 0, off, length)
	})
	return err
}

// PunchHoleContext is PunchHole, except that it also returns when ctx ends, as WriteZeroesContext
// does.
func (v *Volume) PunchHoleContext(ctx context.Context, off, length int64) error {
	_, err := during(ctx, func(c *call) (int, error) {
		return 0, v.clearRange(c, iomsg.WriteZeroes, iomsg.Deallocate, off, length)
	})
	return err
}

// ExtentsContext is Extents, except that it also returns when ctx ends, with the cause of that.
func (v *Volume) ExtentsContext(ctx context.Context, off, length int64) ([]iomsg.Extent, error) {
	var found []iomsg.Extent
	_, err := during(ctx, func(c *call) (int, error) {
		var err error
		found, err = v.extents(c, off, length)
		return 0, err
	})
	if err != nil {
		return nil, err // the call may still go on
	}
	return found, nil
}

// call is one call of a blocking method whose caller may leave before it has ended. Requests cannot
// be called back, so the call goes on, but no longer touches the caller's memory, starts nothing
// new, and repeats nothing. What it changes becomes an orphan: whatever overlaps it, and every
// flush, waits until its requests have no effect any more. The slots of these requests count apart:
// see syncIO. A nil call is one whose caller stays.
type call struct {
	gone   chan struct{} // closed when the caller has left
	mu     sync.Mutex    // guards the fields below
	left   error         // why the caller has left before the end
	ended  chan struct{}
	n      int // the outcome, once ended is closed
	fault  error
	ranges *rangelock.Locks // that hold belongs to
	hold   *rangelock.Hold  // of the range that the call is changing; nil for none
	slots  []*syncSlot      // that the call uses
	read   *read            // what the call reads; nil for nothing
}

// during carries out a call on its own goroutine and waits until it has ended, or until ctx ends.
func during(ctx context.Context, carryOut func(*call) (int, error)) (int, error) {
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}
	if ctx.Done() == nil {
		return carryOut(nil)
	}
	c := &call{gone: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		n, err := carryOut(c)
		_ = c.end(n, err)
	}()
	select {
	case <-c.ended:
	case <-ctx.Done():
		if err := c.leave(context.Cause(ctx)); err != nil {
			return 0, err
		}
	}
	return c.n, c.fault
}

// leave is called when the caller leaves because of cause, which it returns, or nil if the call has
// ended before.
func (c *call) leave(cause error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hasEnded() {
		return nil
	}
	c.left = cause
	close(c.gone)
	if c.hold != nil {
		c.ranges.Abandon(c.hold)
	}
	for _, slot := range c.slots {
		slot.owner.abandon(slot, c.read)
	}
	return cause
}

// hasLeft returns a channel that is closed when the caller has left.
func (c *call) hasLeft() <-chan struct{} {
	if c == nil {
		return nil
	}
	return c.gone
}

// hasEnded reports whether end has been called.
func (c *call) hasEnded() bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// end hands the outcome to the caller, or returns why the caller has left without it. Only the
// first call has an effect.
func (c *call) end(n int, err error) error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left == nil && !c.hasEnded() {
		c.n, c.fault = n, err
		close(c.ended)
	}
	return c.left
}

// lock locks a range for a change. It fails if the caller has left.
func (c *call) lock(ranges *rangelock.Locks, start, end uint64) (*rangelock.Hold, error) {
	held := ranges.Wait(start, end, c.hasLeft())
	if c == nil {
		return held, nil
	}
	if held == nil {
		return nil, c.err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left != nil {
		ranges.Unlock(held)
		return nil, c.left
	}
	c.ranges, c.hold = ranges, held
	return held, nil
}

// unlock undoes lock.
func (c *call) unlock(ranges *rangelock.Locks, held *rangelock.Hold) {
	if c != nil {
		c.mu.Lock()
		c.hold = nil
		c.mu.Unlock()
	}
	ranges.Unlock(held)
}

// err returns why the caller has left, or nil if it has not.
func (c *call) err() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.left
}

// copy copies to or from the caller's memory, unless the caller has left.
func (c *call) copy(to, from []byte) error {
	if c == nil {
		copy(to, from)
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left == nil {
		copy(to, from)
	}
	return c.left
}
