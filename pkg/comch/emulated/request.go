// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"sync"
)

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
