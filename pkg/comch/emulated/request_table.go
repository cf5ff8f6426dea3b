package emulated

import "sync"

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
func (t *requestTable) open(id uint32) <-chan reply {
	t.mu.Lock()
	defer t.mu.Unlock()
	answer := make(chan reply, 1)
	t.waiting[id] = answer
	return answer
}

// cancel gives up waiting. A reply that has come meanwhile is disposed of.
func (t *requestTable) cancel(id uint32) {
	t.mu.Lock()
	answer := t.waiting[id]
	delete(t.waiting, id)
	t.mu.Unlock()
	if answer == nil {
		return
	}
	select {
	case r := <-answer:
		closeDescriptor(r.descriptor)
	default:
	}
}

// answer delivers a reply. One that nobody waits for came too late and is
// ignored.
func (t *requestTable) answer(f *frame, received *descriptors) {
	t.mu.Lock()
	defer t.mu.Unlock()
	waiting := t.waiting[f.fields[0]]
	if waiting == nil || len(waiting) > 0 {
		return
	}
	r := reply{err: peerError(f.fields[1], f.body), descriptor: -1}
	if descriptor, ok := received.take(); ok {
		r.descriptor = descriptor
	}
	waiting <- r
}
