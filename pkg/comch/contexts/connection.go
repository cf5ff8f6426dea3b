package contexts

import (
	"context"
	"errors"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Connection is the established connection between a client and a server, or,
// in a connection event that was not successful, what became of the attempt.
type Connection struct {
	// UserData is the application's.
	UserData any

	control *control
	engine  *progress.Engine // of the control context while this connection lives
	events  bool             // the application looks at consumers
	peer    comch.Connection // nil if there never was one
	refusal error
	process comch.Peer
	sends   *sendQueue
	sending chan struct{} // closed when the goroutine that sends has ended

	// Only the engine's thread:
	announced bool // the application knows it
	gone      bool // it has ended, and the application knows
	dismissed bool

	// Guarded by control.mu:
	children map[child]struct{} // consumers and producers that are not idle
	closing  bool               // takes no more of them
}

// child is a consumer or producer on a connection.
type child interface {
	// connectionEnded has the child learn, on its own thread, that the
	// connection is gone. It does not block.
	connectionEnded(reason error)
}

// Peer identifies the process at the other end.
func (c *Connection) Peer() comch.Peer { return c.process }

// Err says why the connection has ended or could not be made, nil before.
func (c *Connection) Err() error {
	if c.peer == nil {
		return c.refusal
	}
	return c.peer.Err()
}

// ExportMemory is comch.Connection.ExportMemory. It waits for the peer.
func (c *Connection) ExportMemory(ctx context.Context, region *memory.Region, access memory.Access) ([]byte, error) {
	if c.peer == nil {
		return nil, c.notConnected()
	}
	return c.peer.ExportMemory(ctx, region, access)
}

// ImportMemory is comch.Connection.ImportMemory.
func (c *Connection) ImportMemory(descriptor []byte) (*memory.Region, memory.Access, error) {
	if c.peer == nil {
		return nil, 0, c.notConnected()
	}
	return c.peer.ImportMemory(descriptor)
}

func (c *Connection) notConnected() error {
	reason := c.Err()
	if reason == nil {
		reason = errors.New("it is being disconnected")
	}
	return status.Errorf(status.NotConnected, "connection has ended: %w", reason)
}

// adopt enters a consumer or producer that starts, and keeps the connection
// from being disconnected in order.
func (c *Connection) adopt(offspring child) error {
	if c.peer == nil {
		return c.notConnected()
	}
	c.control.mu.Lock()
	defer c.control.mu.Unlock()
	if c.closing || c.peer.Err() != nil {
		return c.notConnected()
	}
	c.children[offspring] = struct{}{}
	return nil
}

// disown is the opposite of adopt. Any thread may call it.
func (c *Connection) disown(offspring child) {
	c.control.mu.Lock()
	delete(c.children, offspring)
	c.control.mu.Unlock()
	c.engine.Do(func() { c.control.dismiss(c) })
}

func (c *Connection) newConsumer(ctx context.Context, config comch.ConsumerConfig) (comch.Consumer, error) {
	return c.peer.NewConsumer(ctx, config)
}

func (c *Connection) newProducer(ctx context.Context, consumer comch.ConsumerID) (comch.Producer, error) {
	return c.peer.NewProducer(ctx, consumer)
}

func (c *Connection) capabilities() comch.Capabilities { return c.control.capabilities }

// checkEvents refuses a fast path beside a server or client that does not look
// at consumers.
func (c *Connection) checkEvents() error {
	if !c.events {
		return status.Errorf(status.Initialization, "the %s of the connection has no consumer callbacks: configure ConsumerCreated and ConsumerExpired",
			c.control.kind)
	}
	return nil
}

// send is the goroutine that waits for room at the peer.
func (c *Connection) send() {
	defer close(c.sending)
	for {
		tasks := c.sends.take()
		if tasks == nil {
			return
		}
		for _, t := range tasks {
			// It returns at the end of the connection, if not before.
			t.complete(c.peer.Send(context.Background(), t.message))
		}
	}
}

// receive is the goroutine that waits for control messages and, in between,
// for the application to see each.
func (c *Connection) receive() {
	events := make(chan struct{})
	go func() {
		defer close(events)
		c.receiveEvents()
	}()
	courier := newCourier(c.engine)
	for {
		message, err := c.peer.Receive(context.Background())
		if err != nil {
			break
		}
		if !courier.deliver(func() { c.control.messageReceived(c, message) }) {
			c.peer.Abort()
			break
		}
	}
	<-events
	courier.deliver(func() { c.control.connectionEnded(c) })
}

func (c *Connection) receiveEvents() {
	courier := newCourier(c.engine)
	for {
		event, err := c.peer.NextConsumerEvent(context.Background())
		if err != nil {
			return
		}
		if !courier.deliver(func() { c.control.consumerEvent(c, event) }) {
			c.peer.Abort()
			return
		}
	}
}

// courier runs functions on the engine's thread, one at a time, so that a
// peer cannot make them pile up.
type courier struct {
	engine *progress.Engine
	done   chan struct{}
}

func newCourier(engine *progress.Engine) *courier {
	return &courier{engine: engine, done: make(chan struct{}, 1)}
}

// deliver waits until f has run. It returns false if it never will.
func (d *courier) deliver(f func()) bool {
	accepted := d.engine.Do(func() {
		f()
		d.done <- struct{}{}
	})
	if accepted {
		<-d.done
	}
	return accepted
}
