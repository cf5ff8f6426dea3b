// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"errors"
	"sync"
	"time"
)

// maxQueuedFrames bounds the frames that wait for the socket, except control messages, which
// credits bound. Only a peer that keeps sending requests and never reads reaches it.
const maxQueuedFrames = 4096

// goodbyeTimeout bounds the time to write the last frames.
const goodbyeTimeout = time.Second

// writeQueue queues frames for the writing goroutine, so that no other goroutine waits for the
// socket. If the reading goroutines of two peers did, they could deadlock.
type writeQueue struct {
	limit   int
	account *account // charged for the descriptors in frames

	mu      sync.Mutex
	queue   []queuedFrame
	closed  bool
	changed chan struct{} // holds a token when the queue has changed
}

// errQueueClosed is what put returns after close.
var errQueueClosed = errors.New("peer no longer receives frames")

// queuedFrame is a frame and the descriptors that it owns until it is written.
type queuedFrame struct {
	frame       frame
	descriptors descriptors
}

func newWriteQueue(credits int, account *account) *writeQueue {
	return &writeQueue{limit: maxQueuedFrames + credits, account: account,
		changed: make(chan struct{}, 1)}
}

// put queues a frame and takes ownership of passed, whether or not it succeeds. It fails with
// errQueueClosed after close, and with a violation if the peer does not read.
func (q *writeQueue) put(f frame, passed descriptors) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		passed.closeAll()
		return errQueueClosed
	}
	if len(q.queue) >= q.limit {
		passed.closeAll()
		return violation("peer does not read: %d frames are queued", q.limit)
	}
	// An account that is full takes no more objects, and frames for them only until it is noticed.
	_ = q.account.charge(holdings{descriptors: len(passed.list)})
	q.queue = append(q.queue, queuedFrame{f, passed})
	q.signal()
	return nil
}

// close stops the writer once it has written all queued frames and last, or at once if last is nil.
func (q *writeQueue) close(last *frame) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.closed = true
	if last != nil {
		q.queue = append(q.queue, queuedFrame{frame: *last})
	} else {
		q.discardLocked()
	}
	q.signal()
}

func (q *writeQueue) signal() {
	select {
	case q.changed <- struct{}{}:
	default:
	}
}

// wait waits for frames and removes them from the queue. It returns nil when there will be no more.
func (q *writeQueue) wait() []queuedFrame {
	for range q.changed {
		q.mu.Lock()
		batch, closed := q.queue, q.closed
		q.queue = nil
		q.mu.Unlock()
		if len(batch) > 0 {
			q.signal() // let the next call see closed
			return batch
		}
		if closed {
			return nil
		}
	}
	return nil
}

// writeTo writes frames until the queue is closed or the socket fails.
func (q *writeQueue) writeTo(s *frameSocket) error {
	for {
		batch := q.wait()
		if batch == nil {
			return nil
		}
		for i := range batch {
			if err := s.write(&batch[i].frame, batch[i].descriptors); err != nil {
				q.closeDescriptorsOf(batch[i:])
				q.discard()
				return err
			}
			q.closeDescriptorsOf(batch[i : i+1])
		}
	}
}

// discard closes the queue and drops its frames.
func (q *writeQueue) discard() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.discardLocked()
}

func (q *writeQueue) discardLocked() {
	q.closeDescriptorsOf(q.queue)
	q.queue = nil
}

func (q *writeQueue) closeDescriptorsOf(frames []queuedFrame) {
	for i := range frames {
		count := len(frames[i].descriptors.list)
		frames[i].descriptors.closeAll()
		q.account.release(holdings{descriptors: count})
	}
}
