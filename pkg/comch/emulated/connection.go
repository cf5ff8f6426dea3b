package emulated

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// connection implements comch.Connection. Two goroutines serve its socket:
// one reads and handles frames, one writes. Consumers and producers never
// touch the socket.
type connection struct {
	role           role
	limits         Limits
	log            *zap.Logger
	peer           comch.Peer
	maxMessageSize int

	socket   *socket
	writes   *writeQueue
	messages chan []byte   // received control messages; never full, by credits
	credits  chan struct{} // one token per message that the peer has room for
	events   *eventQueue
	requests *requestTable
	exports  *exportTable
	local    localObjects
	remote   remoteConsumers
	cleanup  cleanupQueue
	onEnd    func() // tells the server, nil on the client

	// left tells that this side has ended the connection, and wants nothing
	// more of the peer.
	endedLocally atomic.Bool

	mu      sync.Mutex
	err     error // why it has ended
	done    chan struct{}
	stopped sync.WaitGroup // the goroutines
}

// role tells the two sides of a connection apart. They take odd and even ids,
// so that an id is unique on the connection.
type role uint32

const (
	clientRole role = 1
	serverRole role = 2
)

func (r role) other() role { return clientRole + serverRole - r }

// owns reports whether an id was given out by the side r.
func (r role) owns(id uint32) bool { return id != 0 && id%2 == uint32(r)%2 }

// newConnection makes a connection of a socket after the handshake. start
// lets it run.
func newConnection(role role, s *socket, peer comch.Peer, agreed terms, limits Limits, log *zap.Logger) *connection {
	c := &connection{
		role:           role,
		limits:         limits,
		log:            log,
		peer:           peer,
		maxMessageSize: agreed.maxMessageSize,
		socket:         s,
		writes:         newWriteQueue(agreed.peerReceiveQueue),
		messages:       make(chan []byte, agreed.receiveQueue),
		credits:        make(chan struct{}, agreed.peerReceiveQueue),
		events:         newEventQueue(4 * limits.MaxConsumers),
		requests:       newRequestTable(),
		exports:        newExportTable(limits),
		done:           make(chan struct{}),
	}
	c.local.open(role)
	c.remote.open(role, limits, &c.cleanup)
	for range agreed.peerReceiveQueue {
		c.credits <- struct{}{}
	}
	return c
}

// start begins to serve the socket.
func (c *connection) start() {
	c.stopped.Go(c.readFrames)
	c.stopped.Go(c.writeFrames)
}

func (c *connection) Peer() comch.Peer { return c.peer }

func (c *connection) MaxMessageSize() int { return c.maxMessageSize }

func (c *connection) Done() <-chan struct{} { return c.done }

func (c *connection) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Send queues the message for the goroutine that writes, once the peer has
// room for it.
func (c *connection) Send(ctx context.Context, message []byte) error {
	if len(message) > c.maxMessageSize {
		return status.Errorf(status.TooBig, "send control message: %d bytes, the agreed limit is %d",
			len(message), c.maxMessageSize)
	}
	select {
	case <-c.done:
		return c.notConnected("send control message")
	default:
	}
	select {
	case <-c.credits:
	case <-c.done:
		return c.notConnected("send control message")
	case <-ctx.Done():
		return fmt.Errorf("send control message: wait for room at the peer: %w", ctx.Err())
	}
	if !c.enqueue(frame{kind: frameMessage, body: append([]byte(nil), message...)}, descriptors{}) {
		return c.notConnected("send control message")
	}
	return nil
}

// Receive gives the room of the message it takes back to the peer.
func (c *connection) Receive(ctx context.Context) ([]byte, error) {
	var message []byte
	select {
	case message = <-c.messages:
	default:
		select {
		case message = <-c.messages:
		case <-ctx.Done():
			return nil, fmt.Errorf("receive control message: %w", ctx.Err())
		case <-c.done:
			select {
			case message = <-c.messages:
			default:
				return nil, c.notConnected("receive control message")
			}
		}
	}
	c.enqueue(frame{kind: frameCredit, fields: [maxFields]uint32{1}}, descriptors{})
	return message, nil
}

// notConnected is the error of an operation after the end, or when the peer
// is gone and what it sent last is still being read.
func (c *connection) notConnected(operation string) error {
	reason := c.Err()
	if reason == nil {
		reason = errQueueClosed
	}
	return status.Errorf(status.NotConnected, "%s: connection has ended: %w", operation, reason)
}

// Close says goodbye to the peer.
func (c *connection) Close() error {
	if consumers, producers := c.local.count(); consumers+producers > 0 {
		return status.Errorf(status.InUse, "close connection: %d consumers and %d producers are still open",
			consumers, producers)
	}
	goodbye := textFrame(frameGoodbye, nil)
	c.end(byThisSide, status.Errorf(status.Shutdown, "connection was closed by this side"), &goodbye)
	c.waitStopped(2 * goodbyeTimeout)
	return nil
}

// Abort leaves without a word: the peer sees a reset connection.
func (c *connection) Abort() {
	c.end(byThisSide, status.Errorf(status.ConnectionAborted, "connection was aborted by this side"), nil)
}

// awaitStop waits for the goroutines. Closing a descriptor that a hostile
// peer has sent may take for ever; then they are left behind.
func (c *connection) waitStopped(bound time.Duration) {
	stopped := make(chan struct{})
	go func() {
		c.stopped.Wait()
		close(stopped)
	}()
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case <-stopped:
	case <-timer.C:
		c.log.Warn("goroutines of a closed connection do not stop", zap.Int("peer_pid", c.peer.PID))
	}
}

// initiative is who has ended a connection. What a peer has sent before it
// left can still be received.
type endedBy bool

const (
	byPeer     endedBy = false
	byThisSide endedBy = true
)

// end ends the connection, the first time it is called: consumers and
// producers stop and wake up, waiting calls return, and the socket is closed
// after the farewell, if there is one. It does not block, and reports whether
// this call was the first.
func (c *connection) end(who endedBy, reason error, goodbye *frame) bool {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return false
	}
	c.err = reason
	c.endedLocally.Store(bool(who))
	c.mu.Unlock()

	// Not here: closing foreign descriptors and unmapping take time, and end
	// may run on a worker.
	c.stopped.Go(func() {
		c.remote.closeAll()
		c.exports.close()
	})
	c.local.stopAll()
	if c.onEnd != nil {
		c.onEnd()
	}
	close(c.done)
	c.writes.close(goodbye)
	if goodbye == nil {
		// Packets of the peer may be queued in it: see disposal.
		c.stopped.Go(c.socket.close)
	} else {
		c.socket.limitWrites(goodbyeTimeout)
	}
	return true
}

// fail ends the connection because of a violation, and tells the peer.
func (c *connection) fail(reason error) {
	goodbye := textFrame(frameGoodbye, reason)
	if c.end(byThisSide, reason, &goodbye) {
		c.logEnd(reason)
	}
}

func (c *connection) logEnd(reason error) {
	c.log.Warn("ended connection", zap.Int("peer_pid", c.peer.PID), zap.Error(reason))
}
