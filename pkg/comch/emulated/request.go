package emulated

import (
	"context"
	"fmt"
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// answerTimeout bounds the wait for a peer's answer, whatever the caller's
// context allows: a peer that is alive answers at once.
const answerTimeout = 10 * time.Second

// request sends a frame whose first field is the id that the peer answers,
// and waits for the answer. It returns the descriptor that came with it, -1
// if there was none. Ownership of passed goes over.
func (c *connection) request(ctx context.Context, f frame, passed descriptors) (int, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, answerTimeout,
		status.Errorf(status.TimeOut, "peer process %d has not answered for %v", c.peer.PID, answerTimeout))
	defer cancel()
	id := f.fields[0]
	answer := c.requests.open(id)
	defer c.requests.cancel(id)
	if !c.put(f, passed) {
		return -1, c.notConnected("ask peer")
	}
	select {
	case r := <-answer:
		if r.err != nil {
			closeDescriptor(r.descriptor)
			return -1, r.err
		}
		return r.descriptor, nil
	case <-c.done:
		return -1, c.notConnected("wait for the peer's answer")
	case <-ctx.Done():
		return -1, fmt.Errorf("wait for the peer's answer: %w", context.Cause(ctx))
	}
}
