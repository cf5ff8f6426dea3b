package emulated

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// answerTimeout bounds the wait for a peer's answer, whatever the caller's
// context allows: a peer that is alive answers at once.
const replyTimeout = 10 * time.Second

// request sends a frame whose first field is the id that the peer answers,
// and waits for the answer. It returns the descriptor that came with it, -1
// if there was none. Ownership of passed goes over.
func (c *connection) request(ctx context.Context, f frame, passed descriptors) (int, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, replyTimeout,
		status.Errorf(status.TimeOut, "peer process %d has not answered for %v", c.peer.PID, replyTimeout))
	defer cancel()
	id := f.fields[0]
	replies := c.requests.add(id)
	defer c.requests.remove(id)
	if !c.enqueue(f, passed) {
		return -1, c.notConnected("ask peer")
	}
	select {
	case r := <-replies:
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

// reply is the peer's answer to a request.
type reply struct {
	err        error
	descriptor int // -1 if none came; the receiver owns it
}

// requestTable pairs the peer's replies with the requests that wait for them.
type requestTable struct {
	mu      sync.Mutex
	waiting map[uint32]chan reply
}

func newRequestTable() *requestTable {
	return &requestTable{waiting: make(map[uint32]chan reply)}
}

// open announces that a reply to id will be waited for.
func (t *requestTable) add(id uint32) <-chan reply {
	t.mu.Lock()
	defer t.mu.Unlock()
	replies := make(chan reply, 1)
	t.waiting[id] = replies
	return replies
}

// cancel gives up waiting. A reply that has come meanwhile is disposed of.
func (t *requestTable) remove(id uint32) {
	t.mu.Lock()
	replies := t.waiting[id]
	delete(t.waiting, id)
	t.mu.Unlock()
	if replies == nil {
		return
	}
	select {
	case r := <-replies:
		closeDescriptor(r.descriptor)
	default:
	}
}

// answer delivers a reply. One that nobody waits for came too late and is
// ignored.
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
