package dma

import (
	"errors"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Attach lets a progress engine drive the context: from then on jobs can be
// submitted, and the engine's Progress calls handle with the event of every
// job that is done, on the engine's thread. handle may submit jobs and drop
// references, but not detach. status.BadState unless the context is running,
// status.InUse if it is attached.
func (c *Context) Attach(engine *progress.Engine, handle func(Event)) error {
	const what = "attach DMA context"
	if err := c.running(what); err != nil {
		return err
	}
	if engine == nil || handle == nil {
		return status.Errorf(status.InvalidValue, "%s: there is no progress engine, or nobody to take events", what)
	}
	if c.progress != nil {
		return status.Errorf(status.InUse, "%s: it is attached already", what)
	}
	if err := errors.Join(engine.AddWaiter(c.engine), engine.Add(source{c})); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	c.progress, c.handle = engine, handle
	return nil
}

// Detach ends what Attach began. status.InUse while jobs are in flight,
// status.BadState if the context is not attached, or from within an event.
func (c *Context) Detach() error {
	const what = "detach DMA context"
	if c.progress == nil || c.polling {
		return status.Errorf(status.BadState, "%s: it is not attached, or handles an event", what)
	}
	if n := c.InFlight(); n > 0 {
		return status.Errorf(status.InUse, "%s: %d jobs are in flight: progress until their events have come", what, n)
	}
	c.progress.Remove(source{c})
	c.progress.RemoveWaiter(c.engine)
	c.progress, c.handle = nil, nil
	return nil
}

// source is a context as its progress engine sees it.
type source struct{ context *Context }

// Poll hands over the events of what is done.
func (s source) Poll() int {
	c := s.context
	c.polling = true
	n := c.engine.Poll(c.done)
	for _, done := range c.done[:n] {
		c.complete(&c.slots[done.Slot])
	}
	c.polling = false
	return n
}

// complete gives a job's buffers back before anybody hears of it, so that the
// event's receiver may do with them what it likes.
func (c *Context) complete(s *slot) {
	s.hold(-1)
	event := Event{Type: s.job.Type, UserData: s.job.UserData, Err: s.copy.Err}
	if event.Err == nil {
		event.Length = s.length
		s.job.Destination.dataLength += s.length
	}
	s.job = Job{}
	c.free = append(c.free, s.copy.Slot)
	c.handle(event)
}
