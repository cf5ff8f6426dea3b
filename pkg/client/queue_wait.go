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
// polls the queue and passes what it found to Engine.Idle.
func (q *Queue) Attach(engine *progress.Engine) error {
	if err := engine.AddWaiter(q.consumer); err != nil {
		return fmt.Errorf("attach queue: %w", err)
	}
	return nil
}

// Detach ends what Attach began.
func (q *Queue) Detach(engine *progress.Engine) { engine.RemoveWaiter(q.consumer) }

// stopPollInterval is how often a queue looks for the answer to its stop.
const stopPollInterval = 50 * time.Microsecond

// stop sends the stop message and waits until it has come back: then nothing
// of the queue is under way any more, anywhere.
func (q *Queue) stop(ctx context.Context) error {
	if q.ended {
		return q.volume.endError()
	}
	var buf [iomsg.Size]byte
	iomsg.Encode(buf[:], &iomsg.Message{Type: iomsg.Stop})
	if err := q.producer.Send(buf[:], nil); err != nil {
		return fmt.Errorf("send stop: %w", err)
	}
	q.producer.Flush()
	q.stopSent = true
	results := make([]Result, pollBatch)
	for !q.stopped {
		q.Poll(results) // outcomes that nobody waits for any more
		if q.ended {
			return q.volume.endError()
		}
		select {
		case <-ctx.Done():
			return status.Errorf(status.TimeOut, "wait for the answer to stop with %d requests outstanding: %w", q.Outstanding(), ctx.Err())
		case <-time.After(stopPollInterval):
		}
	}
	return nil
}
