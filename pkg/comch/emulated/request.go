package emulated

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// replyTimeout bounds the wait for a reply, whatever the caller's context allows: a live peer
// replies at once.
const replyTimeout = 10 * time.Second

// request sends a frame whose first field is the request's id, and waits for the reply. It returns
// the descriptor in the reply, or -1 if there is none. It takes ownership of passed.
func (c *connection) request(ctx context.Context, f frame, passed descriptors) (int, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, replyTimeout,
		status.Errorf(status.TimeOut, "no reply from peer process %d after %v",
			c.peer.PID, replyTimeout))
	defer cancel()
	id := f.fields[0]
	replies := c.requests.add(id)
	defer func() { c.cleanup.close(c.requests.remove(id)) }()
	if !c.enqueue(f, passed) {
		return -1, c.notConnected("send request")
	}
	select {
	case r := <-replies:
		if r.err != nil {
			c.cleanup.close(r.descriptor)
			return -1, r.err
		}
		return r.descriptor, nil
	case <-c.done:
		return -1, c.notConnected("wait for the peer's reply")
	case <-ctx.Done():
		return -1, fmt.Errorf("wait for the peer's reply: %w", context.Cause(ctx))
	}
}

// reply is the peer's reply to a request.
type reply struct {
	err        error
	descriptor int // -1 if there is none; owned by the receiver of the reply
}

// requestTable holds the requests that wait for replies, by id.
type requestTable struct {
	mu      sync.Mutex
	waiting map[uint32]chan reply
}

func newRequestTable() *requestTable {
	return &requestTable{waiting: make(map[uint32]chan reply)}
}

// add registers a request. The channel delivers its reply.
func (t *requestTable) add(id uint32) <-chan reply {
	t.mu.Lock()
	defer t.mu.Unlock()
	replies := make(chan reply, 1)
	t.waiting[id] = replies
	return replies
}

// remove deregisters a request. It returns the descriptor of a reply that nobody has received, or
// -1.
func (t *requestTable) remove(id uint32) (descriptor int) {
	t.mu.Lock()
	replies := t.waiting[id]
	delete(t.waiting, id)
	t.mu.Unlock()
	select {
	case r := <-replies: // blocks forever if it is nil
		return r.descriptor
	default:
		return -1
	}
}

// deliver passes a reply to its request. It ignores a reply that comes too late.
func (t *requestTable) deliver(f *frame, received *descriptors) {
	t.mu.Lock()
	defer t.mu.Unlock()
	waiting := t.waiting[f.fields[0]]
	if waiting == nil || len(waiting) > 0 {
		return
	}
	r := reply{err: peerError(f.fields[1], f.body), descriptor: -1}
	if descriptor, ok := received.next(); ok {
		r.descriptor = descriptor
	}
	waiting <- r
}
