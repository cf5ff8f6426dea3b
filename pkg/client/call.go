// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"sync"

	"github.com/zc-relay/zc-relay/internal/rangelock"
	"github.com/zc-relay/zc-relay/pkg/status"
)

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
	ranges *rangelock.Locks // that locked belongs to
	locked *rangelock.Range // that the call is changing; nil for none
	slots  []replaceable    // that the call uses
	read   *read            // what the call reads; nil for nothing
}

// replaceable is a slot that a call uses. replace is called when the caller leaves, who is perhaps
// reading; the holder of the call's lock calls it.
type replaceable interface{ replace(r *read) }

// read is a range of the volume that a call reads.
type read struct {
	start, end uint64
	ended      chan struct{}
}

// callUntil carries out a call on its own goroutine and waits until it or ctx ends.
func callUntil(ctx context.Context, carryOut func(*call) (int, error)) (int, error) {
	if ctx == nil {
		return 0, errNilContext
	}
	if err := status.ContextError(ctx); err != nil {
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
		if err := c.leave(status.ContextError(ctx)); err != nil {
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
	if c.locked != nil {
		c.ranges.Orphan(c.locked)
	}
	for _, slot := range c.slots {
		slot.replace(c.read)
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
func (c *call) lock(ranges *rangelock.Locks, start, end uint64) (*rangelock.Range, error) {
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
	c.ranges, c.locked = ranges, held
	return held, nil
}

// unlock undoes lock.
func (c *call) unlock(ranges *rangelock.Locks, held *rangelock.Range) {
	if c != nil {
		c.mu.Lock()
		c.locked = nil
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

// touch lets f touch the caller's memory, unless the caller has left.
func (c *call) touch(f func()) error {
	if c == nil {
		f()
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left == nil {
		f()
	}
	return c.left
}
