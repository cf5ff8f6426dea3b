package emulated

import (
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"
)

// writeFrames writes queued frames. When writing fails, the reading goroutine ends the connection:
// frames that the peer has sent before may still be in the socket.
func (c *connection) writeFrames() {
	if err := c.writes.writeTo(c.socket); err != nil {
		c.log.Debug("failed to write to peer", zap.Int("peer_pid", c.peer.PID), zap.Error(err))
		c.socket.limitReads(goodbyeTimeout)
		<-c.done
	}
	c.socket.close()
}

// enqueue queues a frame and takes ownership of passed. It returns false if the frame will not be
// written. It ends the connection of a peer that sends requests and never reads.
func (c *connection) enqueue(f frame, passed descriptors) bool {
	err := c.writes.put(f, passed)
	if isViolation(err) && c.end(byThisSide, err, nil) {
		c.logEnd(err)
	}
	return err == nil
}

// maxQueuedFrames bounds the frames that wait for the socket, except control messages, which
// credits bound. Only a peer that sends requests without end and never reads reaches it.
const maxQueuedFrames = 4096

// goodbyeTimeout bounds the time to write the last frames.
const goodbyeTimeout = time.Second

// writeQueue queues frames for the writing goroutine, so that no other goroutine waits for the
// socket. If the reading goroutine did, two connections could deadlock.
type writeQueue struct {
	limit int

	mu      sync.Mutex
	queue   []queuedFrame
	closed  bool
	changed chan struct{} // holds a token when the queue has changed
}

// errQueueClosed is the error of put after close.
var errQueueClosed = errors.New("peer no longer receives frames")

// queuedFrame is a frame and the descriptors that it owns until it is written.
type queuedFrame struct {
	frame       frame
	descriptors descriptors
}

func newWriteQueue(credits int) *writeQueue {
	return &writeQueue{limit: maxQueuedFrames + credits, changed: make(chan struct{}, 1)}
}

// put queues a frame and takes ownership of passed, whether or not it succeeds. It fails with
// errQueueClosed after close, and with a violation if the peer does not read.
func (o *writeQueue) put(f frame, passed descriptors) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		passed.closeAll()
		return errQueueClosed
	}
	if len(o.queue) >= o.limit {
		passed.closeAll()
		return violation("peer does not read: %d frames are queued", o.limit)
	}
	o.queue = append(o.queue, queuedFrame{f, passed})
	o.signal()
	return nil
}

// close stops the writer: after all queued frames and last, or at once if last is nil.
func (o *writeQueue) close(last *frame) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	o.closed = true
	if last != nil {
		o.queue = append(o.queue, queuedFrame{frame: *last})
	} else {
		o.discardLocked()
	}
	o.signal()
}

func (o *writeQueue) signal() {
	select {
	case o.changed <- struct{}{}:
	default:
	}
}

// wait waits for frames and removes them from the queue. It returns nil when there will be no more.
func (o *writeQueue) wait() []queuedFrame {
	for range o.changed {
		o.mu.Lock()
		batch, closed := o.queue, o.closed
		o.queue = nil
		o.mu.Unlock()
		if len(batch) > 0 {
			o.signal() // let the next call see closed
			return batch
		}
		if closed {
			return nil
		}
	}
	return nil
}

// writeTo writes frames until the queue is closed or the socket fails.
func (o *writeQueue) writeTo(s *socket) error {
	for {
		batch := o.wait()
		if batch == nil {
			return nil
		}
		for i := range batch {
			if err := s.write(&batch[i].frame, batch[i].descriptors); err != nil {
				closeDescriptorsOf(batch[i:])
				o.discard()
				return err
			}
			batch[i].descriptors.closeAll()
		}
	}
}

// discard closes the queue and drops its frames.
func (o *writeQueue) discard() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.discardLocked()
}

func (o *writeQueue) discardLocked() {
	closeDescriptorsOf(o.queue)
	o.queue = nil
}

func closeDescriptorsOf(frames []queuedFrame) {
	for i := range frames {
		frames[i].descriptors.closeAll()
	}
}
