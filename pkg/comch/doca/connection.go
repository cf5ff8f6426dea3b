// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package doca

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/internal/arrivals"
	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Bounds on what a peer can make this side keep.
const (
	maxMessages = 4096 // control messages that nobody has read
	maxEvents   = 4096 // consumer events that nobody has read
	maxExpired  = 4096 // ids of former consumers
)

// connection implements comch.Connection.
type connection struct {
	endpoint *endpoint
	handle   doca.Connection
	// number tells connections of the endpoint apart: libdoca may use a handle again.
	number uint64
	// maxImports bounds the bytes that the peer may have exported to this side; 0 means no bound.
	maxImports func() uint64
	// lost is called on the thread when libdoca has ended the connection.
	lost func()

	arrivals arrivals.Queue
	sends    chan struct{} // holds one entry per control message in flight
	done     chan struct{}
	ended    atomic.Bool // done is closed
	aborted  atomic.Bool // this side has ended the connection

	mu       sync.Mutex
	err      error
	closed   bool
	children int // consumers and producers that are not closed
	exports  map[exportKey]*export
	imported uint64

	// Only the endpoint's thread uses the rest.

	gone      bool // the handle is not valid any more
	rejected  bool // it is not accepted, so nobody closes it
	leaving   bool // libdoca has been asked to end the connection: nothing is sent any more
	objects   map[*object]struct{}
	live      map[comch.ConsumerID]bool // consumers of the peer
	expired   map[comch.ConsumerID]bool // former ones
	consumers int                       // of this side
	unsent    [][]byte                  // accepted by Send, and not yet by libdoca
	ending    *step                     // disconnects
	leaked    int                       // consumers and producers that libdoca has kept
	givenUp   bool                      // libdoca has not ended the connection in time
	over      bool
}

// newConnection is called on the endpoint's thread.
func newConnection(e *endpoint, handle doca.Connection) *connection {
	e.numbered++
	return &connection{endpoint: e, handle: handle, number: e.numbered,
		maxImports: func() uint64 { return 0 }, lost: func() {},
		sends: make(chan struct{}, maxControlSends), done: make(chan struct{}),
		exports: make(map[exportKey]*export), objects: make(map[*object]struct{}),
		live: make(map[comch.ConsumerID]bool), expired: make(map[comch.ConsumerID]bool)}
}

// Peer returns the zero Peer: DOCA does not tell.
func (c *connection) Peer() comch.Peer { return comch.Peer{} }

func (c *connection) MaxMessageSize() int { return c.endpoint.settings.maxMessageSize }

func (c *connection) Done() <-chan struct{} { return c.done }

func (c *connection) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// HasEnded asks libdoca, which learns of the end from the device.
func (c *connection) HasEnded(by time.Time) bool {
	if !c.ended.Load() {
		c.endpoint.look(by)
	}
	return c.ended.Load()
}

// errNotConnected returns the error of calls after the end.
func (c *connection) errNotConnected() error {
	return status.Errorf(status.NotConnected, "the connection has ended: %w", c.Err())
}

// Send returns when libdoca has the message, or those before it wait there: what this side does
// next comes after it.
func (c *connection) Send(ctx context.Context, message []byte) error {
	if len(message) > c.MaxMessageSize() {
		return status.Errorf(status.TooBig, "send control message of %d bytes: the limit is %d",
			len(message), c.MaxMessageSize())
	}
	if len(message) == 0 {
		return status.Errorf(status.NotSupported, "send control message: DOCA has no empty ones")
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if c.ended.Load() {
		return c.errNotConnected()
	}
	select {
	case c.sends <- struct{}{}:
	case <-c.done:
		return c.errNotConnected()
	case <-ctx.Done():
		return ctx.Err()
	}
	copied := append([]byte(nil), message...)
	submitted := make(chan struct{})
	accepted := c.endpoint.engine.Do(func() {
		c.submit(copied)
		close(submitted)
	})
	if !accepted {
		return c.errNotConnected()
	}
	select {
	case <-submitted:
	case <-c.done: // it may have been sent, and nobody needs to know
	}
	return nil
}

// submit hands a message to libdoca, after those that wait. Only the thread calls it.
func (c *connection) submit(message []byte) {
	if c.gone || c.over || c.leaving {
		return
	}
	c.unsent = append(c.unsent, message)
	if len(c.unsent) == 1 && !c.submitAll() {
		c.endpoint.begin(0, c.submitAll)
	}
}

// submitAll reports whether no message waits any more.
func (c *connection) submitAll() bool {
	if c.leaving {
		c.unsent = nil
	}
	for len(c.unsent) > 0 {
		err := c.endpoint.control.Send(c.handle, c.unsent[0], c.number)
		if errors.Is(err, status.Again) {
			return false
		}
		c.unsent = c.unsent[1:]
		if err != nil {
			c.sent(err)
		}
	}
	return true
}

// sent is called when a message has been sent or has failed.
func (c *connection) sent(err error) {
	<-c.sends
	if err != nil {
		c.end(err)
	}
}

// deliver keeps a message for Receive, and reports whether too many are kept.
func (c *connection) deliver(message []byte) bool {
	kept := c.arrivals.PutMessage(append([]byte(nil), message...))
	if kept > maxMessages {
		c.fail(status.Errorf(status.Full, "%d control messages of the peer wait to be read", kept))
		return false
	}
	return kept >= c.endpoint.settings.receiveQueue
}

func (c *connection) isFull() bool {
	return !c.ended.Load() && c.arrivals.Messages() >= c.endpoint.settings.receiveQueue
}

func (c *connection) Receive(ctx context.Context) ([]byte, error) {
	message, err := c.arrivals.TakeMessage(ctx)
	if err == nil {
		c.received()
	}
	return message, err
}

func (c *connection) NextConsumerEvent(ctx context.Context) (comch.ConsumerEvent, error) {
	return c.arrivals.TakeEvent(ctx)
}

func (c *connection) Next(ctx context.Context) (comch.Arrival, error) {
	next, err := c.arrivals.Take(ctx)
	if err == nil && next.IsMessage() {
		c.received()
	}
	return next, err
}

// received wakes the engine, which may be paused, when there is room for a message again.
func (c *connection) received() {
	if c.arrivals.Messages()+1 == c.endpoint.settings.receiveQueue {
		c.endpoint.engine.Wake()
	}
}

// consumerEvent notes that the peer has created or lost a consumer.
func (c *connection) consumerEvent(event comch.ConsumerEvent) {
	if event.Created == c.live[event.ID] {
		c.fail(status.Errorf(status.Unexpected, "the peer's consumer %d is announced twice",
			event.ID))
		return
	}
	if event.Created {
		c.live[event.ID] = true
		delete(c.expired, event.ID)
	} else {
		delete(c.live, event.ID)
		if len(c.expired) >= maxExpired {
			clear(c.expired)
		}
		c.expired[event.ID] = true
		for o := range c.objects {
			o.targetExpired(event.ID)
		}
	}
	if c.arrivals.PutEvent(event) > maxEvents || len(c.live) > maxEvents {
		c.fail(status.Errorf(status.Full, "too many consumer events of the peer wait to be read"))
	}
}

// end records why the connection has ended, if it has not ended before. Any goroutine may call it.
func (c *connection) end(err error) {
	c.mu.Lock()
	first := c.err == nil
	if first {
		c.err = err
		c.ended.Store(true)
		close(c.done)
	}
	c.mu.Unlock()
	if !first {
		return
	}
	c.arrivals.End(c.errNotConnected())
	c.endpoint.engine.Do(func() {
		for o := range c.objects {
			o.wake()
		}
	})
}

// lose is called on the thread when libdoca has ended the connection.
func (c *connection) lose() {
	c.gone = true
	c.lost()
	delete(c.endpoint.connections, c.handle)
	c.end(status.Errorf(status.ConnectionReset, "the peer has disconnected"))
	c.unsent = nil
	c.closeExports()
}

// fail ends the connection because of an error. Only the thread calls it.
func (c *connection) fail(err error) {
	if !c.ended.Load() {
		c.endpoint.log.Info("a connection has failed", zap.Error(err))
	}
	c.end(err)
	c.disconnect()
}

// disconnect destroys what this side has on the connection, because libdoca refuses to disconnect
// as long as there are consumers or producers, and then ends the connection. After
// comch.CloseTimeout it gives the connection up. Only the thread calls it. The step that it returns
// takes until then.
func (c *connection) disconnect() *step {
	if c.ending != nil {
		return c.ending
	}
	requested := false
	deadline := time.Now().Add(comch.CloseTimeout)
	c.ending = c.endpoint.begin(0, func() bool {
		left := 0
		for o := range c.objects {
			if !o.teardown() {
				left++
			}
		}
		if left == 0 && c.leaked == 0 && !requested && !c.gone {
			c.closeExports()
			requested = c.requestEnd()
		}
		isOver := left == 0 && c.gone
		// Nobody may be there to close the connection: of a rejected client nobody knows.
		c.givenUp = !isOver && (left == 0 && c.leaked > 0 || time.Now().After(deadline))
		if !isOver && !c.givenUp {
			return false
		}
		c.closeExports()
		c.finish()
		return true
	})
	return c.ending
}

// requestEnd asks libdoca to end the connection, and reports whether it does.
func (c *connection) requestEnd() bool {
	var err error
	if c.endpoint.representor != nil {
		err = c.endpoint.control.Disconnect(c.handle)
	} else {
		err = c.endpoint.control.Stop()
	}
	if errors.Is(err, status.Again) || errors.Is(err, status.InUse) {
		return false
	}
	c.leaving = true
	if err != nil {
		c.endpoint.log.Warn("disconnect", zap.Error(err))
	}
	return true
}

// reject ends a connection that will not be accepted. Only the thread calls it.
func (c *connection) reject(reason error) {
	if !c.over {
		c.rejected = true
		c.endpoint.rejected++
	}
	c.end(reason)
	c.disconnect()
}

// finish lets go of the connection. Only the thread calls it.
func (c *connection) finish() {
	if c.rejected {
		c.endpoint.rejected--
	}
	if c.givenUp {
		c.endpoint.log.Warn("give up a connection that libdoca does not end",
			zap.Int("consumers and producers", len(c.objects)+c.leaked))
	}
	c.over = true
	c.endpoint.leave()
}

func (c *connection) Abort() {
	c.aborted.Store(true)
	c.end(status.Errorf(status.ConnectionAborted, "the connection was aborted"))
	c.endpoint.engine.Do(func() { c.disconnect() })
}

func (c *connection) Close() error {
	c.mu.Lock()
	if c.children > 0 {
		defer c.mu.Unlock()
		return status.Errorf(status.InUse,
			"close comch connection: it has %d consumers and producers", c.children)
	}
	closed := c.closed
	c.closed = true
	c.mu.Unlock()
	if closed {
		return nil
	}
	c.drain()
	c.aborted.Store(true)
	c.end(status.Errorf(status.Shutdown, "the connection was closed"))
	var disconnected *step
	err := c.endpoint.do(func() error { disconnected = c.disconnect(); return nil })
	if err == nil && <-disconnected.done == nil && c.givenUp {
		return status.Errorf(status.TimeOut,
			"close comch connection: the device has not let go of it within %v",
			comch.CloseTimeout)
	}
	return c.endpoint.awaitEnd()
}

// drain waits until the messages of Send have been sent.
func (c *connection) drain() {
	ctx, cancel := context.WithTimeout(context.Background(), comch.CloseTimeout)
	defer cancel()
	for range cap(c.sends) {
		select {
		case c.sends <- struct{}{}:
		case <-c.done:
			return
		case <-ctx.Done():
			return
		}
	}
}
