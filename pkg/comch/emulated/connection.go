// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/broker"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/internal/arrivals"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// connection implements comch.Connection. Two goroutines serve its socket: one reads and handles
// frames, the other writes them. Consumers and producers never touch the socket.
type connection struct {
	role           role
	limits         Limits
	log            *zap.Logger
	peer           comch.Peer
	maxMessageSize int
	receiveQueue   int // messages that the peer may send before they are received

	socket   *frameSocket
	writes   *writeQueue
	arrivals arrivals.Queue
	credits  chan struct{} // one token per message that the peer has room for
	requests *requestTable
	exports  *exportTable
	plain    plainExports
	local    localObjects
	remote   remoteConsumers
	pool     *pool
	account  *account
	cleanup  cleanupQueue
	onEnd    func() // notifies the server; nil on the client

	// remoteProducers is the number of the peer's producers, of all consumers.
	remoteProducers atomic.Int32
	// full is why the connection may keep no more descriptors, or nil. It belongs to the reading
	// goroutine.
	full           error
	cleanupTimeout time.Duration
	brokerTimeout  time.Duration
	reachesImports bool // see Options.ReachImports

	// endedLocally is set once this side has ended the connection. Its consumers then receive
	// nothing more.
	endedLocally atomic.Bool

	mu      sync.Mutex
	err     error // why the connection ended; nil while it has not
	done    chan struct{}
	running sync.WaitGroup // goroutines of the connection
}

const (
	// cleanupTimeout bounds how long the connection waits for what a peer has left behind.
	cleanupTimeout = 5 * time.Second
	// brokerTimeout bounds the conversation with a broker: to connect to it, and to get its answer.
	brokerTimeout = 2 * broker.Timeout
)

// newConnection returns a connection on a socket after the handshake. Call start to serve the
// socket.
func newConnection(role role, s *frameSocket, peer comch.Peer, agreed terms, limits Limits,
	pool *pool, log *zap.Logger) *connection {
	account := pool.newAccount(limits)
	c := &connection{
		role:           role,
		limits:         limits,
		log:            log,
		peer:           peer,
		maxMessageSize: agreed.maxMessageSize,
		socket:         s,
		writes:         newWriteQueue(agreed.peerReceiveQueue, account),
		receiveQueue:   agreed.receiveQueue,
		credits:        make(chan struct{}, agreed.peerReceiveQueue),
		requests:       newRequestTable(),
		exports:        newExportTable(limits),
		pool:           pool,
		account:        account,
		cleanup:        cleanupQueue{account: account},
		cleanupTimeout: cleanupTimeout,
		brokerTimeout:  brokerTimeout,
		done:           make(chan struct{}),
	}
	c.local.open(role)
	c.remote = remoteConsumers{role: role, cleanup: &c.cleanup, lingering: &pool.lingering,
		user: peer.UID, limit: limits.MaxConsumers,
		consumers: make(map[comch.ConsumerID]*remoteConsumer)}
	for range agreed.peerReceiveQueue {
		c.credits <- struct{}{}
	}
	return c
}

func (c *connection) Peer() comch.Peer { return c.peer }

func (c *connection) MaxMessageSize() int { return c.maxMessageSize }

func (c *connection) Done() <-chan struct{} { return c.done }

// HasEnded asks the kernel, which knows of the peer's end before the reading goroutine has read
// what the peer sent before.
func (c *connection) HasEnded(time.Time) bool {
	return c.Err() != nil || c.socket.hasPeerLeft()
}

func (c *connection) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Send queues the message for the writing goroutine, once the peer has room for it.
func (c *connection) Send(ctx context.Context, message []byte) error {
	if len(message) > c.maxMessageSize {
		return status.Errorf(status.TooBig,
			"send control message: %d bytes exceed the agreed limit of %d",
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

// Receive returns the credit of the message to the peer.
func (c *connection) Receive(ctx context.Context) ([]byte, error) {
	message, err := c.arrivals.TakeMessage(ctx)
	if err != nil {
		return nil, fmt.Errorf("receive control message: %w", err)
	}
	c.returnCredit()
	return message, nil
}

func (c *connection) NextConsumerEvent(ctx context.Context) (comch.ConsumerEvent, error) {
	event, err := c.arrivals.TakeEvent(ctx)
	if err != nil {
		return event, fmt.Errorf("wait for consumer event: %w", err)
	}
	return event, nil
}

// Next returns the credit of a message, too.
func (c *connection) Next(ctx context.Context) (comch.Arrival, error) {
	next, err := c.arrivals.Take(ctx)
	if err != nil {
		return next, fmt.Errorf("wait for the peer: %w", err)
	}
	if next.IsMessage() {
		c.returnCredit()
	}
	return next, nil
}

func (c *connection) returnCredit() {
	c.enqueue(frame{kind: frameCredit, fields: [maxFields]uint32{1}}, descriptors{})
}

// notConnected returns the error of an operation on an ended connection, or on one whose queue
// takes no more frames while the peer's last frames are still being read.
func (c *connection) notConnected(operation string) error {
	reason := c.Err()
	if reason == nil {
		reason = errQueueClosed
	}
	return status.Errorf(status.NotConnected, "%s: connection has ended: %w", operation, reason)
}

// enqueue queues a frame and takes ownership of passed. It returns false if the frame will not be
// written. If the peer sends requests but never reads, enqueue ends the connection.
func (c *connection) enqueue(f frame, passed descriptors) bool {
	err := c.writes.put(f, passed)
	if isViolation(err) && c.end(byThisSide, err, nil) {
		c.logEnd(err)
	}
	return err == nil
}

// replyTimeout bounds the wait for a reply, whatever the caller's context allows: a live peer
// replies at once.
const replyTimeout = 10 * time.Second

// request sends a frame whose first field is the request's id, and waits for the reply. It returns
// the descriptor in the reply, or -1 if there is none. It takes ownership of passed.
func (c *connection) request(ctx context.Context, f frame, passed descriptors) (int, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, replyTimeout,
		status.Errorf(status.TimeOut, "no reply from peer process %d after %v",
			c.peer.PID, replyTimeout))
	defer cancel()
	id := f.fields[0]
	replies := c.requests.add(id)
	defer func() { c.cleanup.close(c.requests.remove(id)) }()
	if !c.enqueue(f, passed) {
		return -1, c.notConnected("send request")
	}
	select {
	case r := <-replies:
		if r.err != nil {
			c.cleanup.close(r.descriptor)
			return -1, r.err
		}
		return r.descriptor, nil
	case <-c.done:
		return -1, c.notConnected("wait for the peer's reply")
	case <-ctx.Done():
		return -1, fmt.Errorf("wait for the peer's reply: %w", context.Cause(ctx))
	}
}

// Close sends a goodbye to the peer.
func (c *connection) Close() error {
	if consumers, producers := c.local.count(); consumers+producers > 0 {
		return status.Errorf(status.InUse,
			"close connection: %d consumers and %d producers are still open",
			consumers, producers)
	}
	goodbye := textFrame(frameGoodbye, nil)
	c.end(byThisSide, status.Errorf(status.Shutdown, "this side closed the connection"), &goodbye)
	c.awaitGoroutines(2 * goodbyeTimeout)
	return nil
}

// Abort sends no goodbye: the peer sees a connection reset.
func (c *connection) Abort() {
	c.end(byThisSide,
		status.Errorf(status.ConnectionAborted, "this side aborted the connection"), nil)
}

// awaitGoroutines waits for the goroutines, up to bound. Closing a descriptor that a hostile peer
// has sent may take forever; the goroutine that closes it stays behind.
func (c *connection) awaitGoroutines(bound time.Duration) {
	ended := make(chan struct{})
	go func() {
		c.running.Wait()
		close(ended)
	}()
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
		c.log.Warn("goroutines of a closed connection are still running",
			zap.Int("peer_pid", c.peer.PID))
	}
}

// endedBy is the side that ended a connection. Messages that the peer sent before it ended the
// connection can still be received.
type endedBy bool

const (
	byPeer     endedBy = false
	byThisSide endedBy = true
)

// end ends the connection unless it has ended already, and reports whether it did. It does not
// block. Consumers and producers stop and wake up, pending calls return, and the socket closes
// after goodbye has been written, or at once if goodbye is nil.
func (c *connection) end(who endedBy, reason error, goodbye *frame) bool {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return false
	}
	c.err = reason
	c.endedLocally.Store(bool(who))
	c.mu.Unlock()

	// In the background, because end may run on a worker.
	c.running.Go(func() {
		c.remote.closeAll()
		c.exports.close(&c.cleanup)
		c.plain.close(&c.cleanup)
	})
	c.local.stopAll()
	c.cleanup.acquire()
	c.cleanup.end()
	if c.onEnd != nil {
		c.onEnd()
	}
	c.arrivals.End(status.Errorf(status.NotConnected, "connection has ended: %w", reason))
	close(c.done)
	c.writes.close(goodbye)
	if goodbye == nil {
		// The socket may hold packets with descriptors of the peer, so closing it can block: see
		// cleanupQueue. The peer need not wait for that.
		c.socket.disconnect()
		c.running.Go(c.socket.close)
	} else {
		c.socket.setWriteTimeout(goodbyeTimeout)
	}
	go func() {
		c.running.Wait()
		c.account.release(holdings{descriptors: 1}) // the socket
		c.cleanup.release()
	}()
	return true
}

// fail ends the connection because of a violation and sends the reason to the peer.
func (c *connection) fail(reason error) {
	goodbye := textFrame(frameGoodbye, reason)
	if c.end(byThisSide, reason, &goodbye) {
		c.logEnd(reason)
	}
}

func (c *connection) logEnd(reason error) {
	c.log.Warn("ended connection", zap.Int("peer_pid", c.peer.PID), zap.Error(reason))
}
