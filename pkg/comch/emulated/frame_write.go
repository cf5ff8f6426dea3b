package emulated

import (
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"
)

// writeFrames leaves a broken socket to the goroutine that reads: the peer's
// last words may still be queued in it.
func (c *connection) writeFrames() {
	if err := c.writes.writeTo(c.socket); err != nil {
		c.log.Debug("cannot write to peer", zap.Int("peer_pid", c.peer.PID), zap.Error(err))
		c.socket.limitReads(goodbyeTimeout)
		<-c.done
	}
	c.socket.close()
}

// put queues a frame. A peer that asks and never reads ends the connection;
// one that can no longer be written to is left to the goroutine that reads.
func (c *connection) enqueue(f frame, passed descriptors) bool {
	err := c.writes.put(f, passed)
	if isViolation(err) && c.end(byThisSide, err, nil) {
		c.logEnd(err)
	}
	return err == nil
}

// maxUnsent bounds the frames that wait for the socket, apart from control
// messages, whose number credits bound. Only a peer that asks without end
// and reads nothing reaches it.
const maxQueuedFrames = 4096

// farewellTimeout bounds how long the last frames may take to be written.
const goodbyeTimeout = time.Second

// outbox queues frames for the goroutine that writes them, so that nobody
// else waits for the socket: in particular not the goroutine that reads it,
// or two connections could wait for each other.
type writeQueue struct {
	limit int

	mu      sync.Mutex
	queue   []queuedFrame
	closed  bool
	changed chan struct{} // holds a token while there is something to see
}

// errFinished tells that the outbox takes no more frames.
var errQueueClosed = errors.New("nothing more is sent to the peer")

// outgoing is a frame and the descriptors that it owns until it is written.
type queuedFrame struct {
	frame       frame
	descriptors descriptors
}

func newWriteQueue(credits int) *writeQueue {
	return &writeQueue{limit: maxQueuedFrames + credits, changed: make(chan struct{}, 1)}
}

// put queues a frame and takes over the descriptors, whether it succeeds or
// not. It fails with errFinished when nothing is written any more, and with a
// violation when the peer does not read.
func (o *writeQueue) put(f frame, passed descriptors) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		passed.closeAll()
		return errQueueClosed
	}
	if len(o.queue) >= o.limit {
		passed.closeAll()
		return violation("peer does not read: %d frames wait for it", o.limit)
	}
	o.queue = append(o.queue, queuedFrame{f, passed})
	o.signal()
	return nil
}

// finish lets the writer end: after what is queued and the farewell, if there
// is one, and otherwise at once.
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

// take waits for frames. It returns none when there will be no more.
func (o *writeQueue) wait() []queuedFrame {
	for range o.changed {
		o.mu.Lock()
		batch, closed := o.queue, o.closed
		o.queue = nil
		o.mu.Unlock()
		if len(batch) > 0 {
			o.signal() // to see whether it is finished
			return batch
		}
		if closed {
			return nil
		}
	}
	return nil
}

// writeTo writes frames until the outbox is finished or the socket fails.
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

// discard drops what is queued and refuses more.
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
