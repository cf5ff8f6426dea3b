// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// EventDescriptor returns a descriptor for an event loop of the program's, such as epoll, in place
// of Attach. It is readable when a call of Poll, Process, or Submit may do something that it could
// not before: there are results, a session has begun or ended, the relay has room again, or a
// request has exceeded its time. The client owns it, and it is closed with the volume; take it out
// of the loop before.
//
// It is level-triggered: it stays readable until the next Poll or Process, which need not return
// all results at once. It also suits loops that report only changes (EPOLLET), if they call Poll or
// Process until that returns 0. No wake-up is lost, and there may be some without results. Call
// Ring before the loop sleeps.
//
// Only the queue's thread may call EventDescriptor; later calls return the same descriptor. While
// an engine is attached it fails with status.InUse, as Attach does from then on. From then on, each
// Poll takes a few system calls.
func (q *Queue) EventDescriptor() (int, error) {
	if q.events == nil {
		if err := q.openEvents(); err != nil {
			return -1, fmt.Errorf("event descriptor of queue %d of volume %q: %w", q.index,
				q.terms.info.Name, err)
		}
	}
	return q.events.Descriptor(), nil
}

func (q *Queue) openEvents() error {
	if q.isClosed {
		return ErrClosed
	}
	if q.engine.Load() != nil {
		return status.Errorf(status.InUse, "the queue is attached to an engine: Detach it first")
	}
	engine, err := progress.NewEngine(progress.Policy{Mode: progress.Event})
	if err != nil {
		return err
	}
	if err := q.attach(engine); err != nil {
		_ = engine.Close()
		return err
	}
	q.events = engine
	q.events.Arm()
	return nil
}

// pollAwake is poll for a queue with an event descriptor, which it clears before, and arms again
// after.
func (q *Queue) pollAwake(results []Result) int {
	q.events.Disarm()
	q.events.Progress() // wake-ups by other threads
	n := q.poll(results)
	q.events.Arm()
	return n
}

// closeEvents closes the event descriptor, if there is one.
func (q *Queue) closeEvents() error {
	if q.events == nil {
		return nil
	}
	q.engine.Store(nil)
	q.pair.detach(q.events)
	err := q.events.Close()
	q.events = nil
	return err
}
