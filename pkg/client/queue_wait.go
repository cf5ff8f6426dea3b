package client

import (
	"context"
	"fmt"
	"time"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Attach lets engine's thread sleep until the queue has results: the thread
// polls the queue and passes what it found to Engine.Idle. A queue is attached
// to one engine at a time.
func (q *Queue) Attach(engine *progress.Engine) error {
	if err := engine.AddWaiter(q.lane.consumer); err != nil {
		return fmt.Errorf("attach queue: %w", err)
	}
	q.engine.Store(engine)
	return nil
}

// Detach ends what Attach began.
func (q *Queue) Detach(engine *progress.Engine) {
	q.engine.Store(nil)
	engine.RemoveWaiter(q.lane.consumer)
}

// stopPollInterval is how often a queue looks for the answer to its stop.
const stopPollInterval = 50 * time.Microsecond

// stop sends the stop message and waits until it has come back: then nothing
// of the queue is under way any more, anywhere.
func (q *Queue) stop(ctx context.Context) error {
	if !q.ended && q.lane.session != q.volume.session.Load() {
		q.end()
	}
	results := make([]Result, pollBatch)
	for q.ended {
		// Nobody waits for what is left of a session that was lost.
		if n := q.Poll(results); n == 0 && q.ended {
			return q.lane.session.endError()
		}
	}
	var buf [iomsg.Size]byte
	iomsg.Encode(buf[:], &iomsg.Message{Type: iomsg.Stop})
	if err := q.lane.producer.Send(buf[:], nil); err != nil {
		return fmt.Errorf("send stop: %w", err)
	}
	q.lane.producer.Flush()
	q.stopSent = true
	for !q.stopped {
		q.Poll(results) // outcomes that nobody waits for any more
		if q.ended {
			return q.lane.session.endError()
		}
		select {
		case <-ctx.Done():
			return status.Errorf(status.TimeOut, "wait for the answer to stop with %d requests outstanding: %w", q.Outstanding(), ctx.Err())
		case <-time.After(stopPollInterval):
		}
	}
	return nil
}
