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
	sends   chan *SendTask // has room for the whole pool
	sending chan struct{}  // closed when the goroutine that sends has ended

	// Only the engine's thread:
	announced bool // the application knows it
	gone      bool // it has ended, and the application knows
	released  bool

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
func (c *Connection) addChild(member child) error {
	if c.peer == nil {
		return c.notConnected()
	}
	c.control.mu.Lock()
	defer c.control.mu.Unlock()
	if c.closing || c.peer.Err() != nil {
		return c.notConnected()
	}
	c.children[member] = struct{}{}
	return nil
}

// disown is the opposite of adopt. Any thread may call it.
func (c *Connection) removeChild(member child) {
	c.control.mu.Lock()
	delete(c.children, member)
	c.control.mu.Unlock()
	c.engine.Do(func() { c.control.releaseConnection(c) })
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
	for t := range c.sends {
		// It returns at the end of the connection, if not before.
		t.complete(c.peer.Send(context.Background(), t.message))
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
	for {
		message, err := c.peer.Receive(context.Background())
		if err != nil {
			break
		}
		if !callOnEngine(c.engine, func() { c.control.messageReceived(c, message) }) {
			c.peer.Abort()
			break
		}
	}
	<-events
	callOnEngine(c.engine, func() { c.control.connectionEnded(c) })
}

func (c *Connection) receiveEvents() {
	for {
		event, err := c.peer.NextConsumerEvent(context.Background())
		if err != nil {
			return
		}
		if !callOnEngine(c.engine, func() { c.control.consumerEvent(c, event) }) {
			c.peer.Abort()
			return
		}
	}
}

// callOnEngine runs f on the engine's thread and waits until it has returned, so
// that a peer cannot queue calls faster than the application handles them. It
// returns false if the engine is closed and f will never run.
func callOnEngine(engine *progress.Engine, f func()) bool {
	done := make(chan struct{})
	accepted := engine.Do(func() {
		f()
		close(done)
	})
	if accepted {
		<-done
	}
	return accepted
}
