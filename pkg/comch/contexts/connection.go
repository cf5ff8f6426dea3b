// SPDX-License-Identifier: Apache-2.0

package contexts

import (
	"context"
	"errors"

	"github.com/zc-relay/zc-relay/internal/inorder"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Connection is the connection between a client and a server. If the client was rejected, it only
// holds the reason and the process.
type Connection struct {
	// UserData belongs to the application.
	UserData any

	control   *control
	engine    *progress.Engine // of control, for as long as the connection exists
	events    bool             // the application has consumer callbacks
	peer      comch.Connection // nil if the client was rejected
	rejection error            // why it was rejected
	process   comch.Peer
	// actions are what the peer sees in the order in which the application has caused it: messages,
	// the beginnings and ends of consumers, and the end of the connection.
	actions inorder.Queue
	// sending ends when this side disconnects: messages that are still queued fail.
	sending     context.Context
	stopSending context.CancelFunc

	// The following belong to the engine's thread.
	announced bool // Connected has been called
	gone      bool // connectionEnded has been called
	released  bool // nothing uses it any more

	// The following are guarded by control.mu. Only the engine's thread writes closing.
	children map[child]struct{} // consumers and producers that are not idle
	closing  bool               // rejects further children
}

// child is a consumer or producer of a connection.
type child interface {
	// connectionEnded reports the end of the connection. It does not block; the child handles the
	// end on its own thread.
	connectionEnded(reason error)
}

// Peer identifies the process at the other end.
func (c *Connection) Peer() comch.Peer { return c.process }

// Err returns why the connection ended or was rejected. It returns nil while the connection is up.
func (c *Connection) Err() error {
	if c.peer == nil {
		return c.rejection
	}
	return c.peer.Err()
}

// ExportMemory lets the peer import a region, as comch.Connection does. It blocks until the peer
// has replied.
func (c *Connection) ExportMemory(
	ctx context.Context, region *memory.Region, access memory.Access,
) ([]byte, error) {
	if c.peer == nil {
		return nil, c.notConnected()
	}
	return c.peer.ExportMemory(ctx, region, access)
}

// ImportMemory turns a descriptor that the peer has sent into a region, as comch.Connection does.
func (c *Connection) ImportMemory(descriptor []byte) (*memory.Region, memory.Access, error) {
	if c.peer == nil {
		return nil, 0, c.notConnected()
	}
	return c.peer.ImportMemory(descriptor)
}

func (c *Connection) notConnected() error {
	reason := c.Err()
	if reason == nil {
		reason = errors.New("it is being closed")
	}
	return status.Errorf(status.NotConnected, "connection has ended: %w", reason)
}

// addChild registers a consumer or producer that is being started. The application cannot close the
// connection until removeChild.
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

// removeChild undoes addChild. Any thread may call it.
func (c *Connection) removeChild(member child) {
	c.control.mu.Lock()
	delete(c.children, member)
	c.control.mu.Unlock()
	c.engine.Do(func() { c.control.releaseConnection(c) })
}

func (c *Connection) do(f func()) { c.actions.DoSoon(f) }

func (c *Connection) settle() { c.actions.Settle() }

func (c *Connection) newConsumer(
	ctx context.Context, config comch.ConsumerConfig,
) (comch.Consumer, error) {
	return c.peer.NewConsumer(ctx, config)
}

func (c *Connection) newProducer(
	ctx context.Context, consumer comch.ConsumerID,
) (comch.Producer, error) {
	return c.peer.NewProducer(ctx, consumer)
}

func (c *Connection) capabilities() comch.Capabilities { return c.control.capabilities }

func (c *Connection) checkEvents() error {
	if !c.events {
		return status.Errorf(status.Initialization,
			"the %s of the connection has no consumer callbacks: configure ConsumerCreated and ConsumerExpired",
			c.control.kind)
	}
	return nil
}

// send sends a message once the peer has room for it.
func (c *Connection) send(t *SendTask) {
	c.actions.Do(func() {
		err := c.peer.Send(c.sending, t.message)
		if err != nil && c.sending.Err() != nil {
			err = c.notConnected()
		}
		t.complete(err)
	})
}

// disconnect tells the peer of the end, after everything that it has yet to see.
func (c *Connection) disconnect() {
	c.stopSending()
	c.actions.Do(func() {
		if c.peer.Close() != nil {
			c.peer.Abort()
		}
	})
	c.actions.Wait()
}

// receive is the goroutine that waits for what the peer does. It hands that to the engine's thread
// and waits until the application has seen it.
func (c *Connection) receive() {
	for {
		next, err := c.peer.Next(context.Background())
		if err != nil {
			break
		}
		handle := func() { c.control.consumerEvent(c, next.Event) }
		if next.IsMessage() {
			handle = func() { c.control.messageReceived(c, next.Message) }
		}
		if !callOnEngine(c.engine, handle) {
			c.peer.Abort()
			break
		}
	}
	callOnEngine(c.engine, func() { c.control.connectionEnded(c) })
}

// callOnEngine runs f on the engine's thread and waits until it has returned, so that a peer cannot
// queue calls faster than the application handles them. It returns false if the engine is closed,
// in which case f never runs.
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
