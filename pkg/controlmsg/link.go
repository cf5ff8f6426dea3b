// SPDX-License-Identifier: Apache-2.0

package controlmsg

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// DefaultTimeout bounds each wait of an endpoint unless configured otherwise.
const DefaultTimeout = 10 * time.Second

const (
	// farewellTimeout bounds the waits for a farewell, the last message with the reason: for
	// sending this side's, and for receiving the peer's.
	farewellTimeout = time.Second
	// peerCloseTimeout bounds the wait for a peer to close after it has sent a farewell.
	peerCloseTimeout = 500 * time.Millisecond
)

// Endpoint is this side's end of a conversation: a Requester, a Responder, or what stands for one
// towards a peer with another protocol. Its methods may be called concurrently.
type Endpoint interface {
	// Done returns a channel that is closed when the conversation has ended, for whatever reason.
	Done() <-chan struct{}
	// Err returns why the conversation has ended, or nil if it has not.
	Err() error
	// Close ends the conversation, sends the reason to the peer unless it is nil, and closes the
	// transport gracefully. It takes a bounded time. Later calls wait for the first.
	Close(reason error)
}

// EndpointConfig configures a Requester or a Responder. Role is required.
type EndpointConfig struct {
	// Role is the role of this side. Together with the kind of endpoint it selects the
	// conversation.
	Role Role
	// Timeout bounds each wait: for the reply to a request, for the peer to accept a message, and
	// for the next request while the peer sets up its session. 0 means DefaultTimeout.
	Timeout time.Duration
	// KeepAlive configures how the endpoint detects a dead peer. The zero value is for transports
	// that detect it themselves, like Comch.
	KeepAlive KeepAliveConfig
	// DataSecurity is what a Requester says in its Hello.
	DataSecurity DataSecurity
	// OnHello is called by a Responder with a valid hello, and its answer before it sends that. An
	// error ends the conversation, with that reason, instead of the answer. It may be nil.
	OnHello func(hello *Hello, reply *HelloReply) error
	// Announce is called with each keep-alive before it is sent, to add what this side has to say.
	// Any goroutine may call it. It may be nil.
	Announce func(m *KeepAlive)
	// Peers, if not nil, has the conversations that share their keep-alives.
	Peers *Peers
	// AnnounceEvery, if not 0, is how often a keep-alive is sent at least, whatever else has been.
	AnnounceEvery time.Duration
	// OnKeepAlive is called with each keep-alive that arrives, on the goroutine that receives,
	// which it must not delay. An error is a violation of the protocol. It may be nil.
	OnKeepAlive func(m *KeepAlive) error
	// Software is the name and version that the peer sees.
	Software string
	// Process is what a Responder says in its HelloReply.
	Process uint64
	// Rejections keeps an endpoint from logging each attempt of a peer that does not get to a
	// volume. It is shared by conversations; nil logs them all.
	Rejections *Rejections
	// Logger receives the endpoint's log entries; it may be nil.
	Logger *zap.Logger
}

func (c EndpointConfig) withDefaults() EndpointConfig {
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.Software == "" {
		c.Software = "zc-relay"
	}
	if c.OnHello == nil {
		c.OnHello = func(*Hello, *HelloReply) error { return nil }
	}
	if c.Announce == nil {
		c.Announce = func(*KeepAlive) {}
	}
	if c.OnKeepAlive == nil {
		c.OnKeepAlive = func(*KeepAlive) error { return nil }
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	c.KeepAlive = c.KeepAlive.withDefaults()
	return c
}

// link is the part that Requester and Responder share: a goroutine that receives, ordered sending,
// keep-alives, and a single end with a single reason.
//
// Any goroutine may end the link. The receiving goroutine then sends the farewell, closes the
// transport and exits, so that nobody else has to clean up.
type link struct {
	transport Transport
	config    EndpointConfig
	owner     linkOwner
	sendLimit atomic.Int64  // largest message that the peer accepts, in bytes
	sending   chan struct{} // has an element while a goroutine sends
	broken    bool          // a send has failed; guarded by sending

	ctx      context.Context // of Receive; ends with the link
	cancel   context.CancelFunc
	done     chan struct{} // closed when the link has ended
	told     chan struct{} // closed when the farewell has been sent, or nobody will send one
	finished chan struct{} // closed when the transport is closed and all goroutines have exited
	watchers sync.WaitGroup
	begun    time.Time
	heard    atomic.Int64 // when the last message arrived, in ns after begun
	sent     atomic.Bool  // a message has been sent since the last keep-alive tick
	shares   atomic.Bool  // the keep-alives; set once, under Peers.mu

	mu        sync.Mutex // guards what follows
	heartbeat *heartbeat // nil if nobody needs keep-alives
	err       error      // why the link has ended
	farewell  *Error     // the last message to the peer; nil if none
	leaving   bool       // the peer has sent a farewell, and closes on its own
	abort     bool       // close without waiting for the peer
	news      int        // calls of announce that have not been carried out
}

// linkOwner is the endpoint that owns a link. Any goroutine may call its methods.
type linkOwner interface {
	// deliver handles a message other than keep_alive and farewells. An error is a violation of the
	// protocol and ends the link.
	deliver(e *Envelope) error
	// attribute returns the reason that a farewell of the peer gives, by its origin.
	attribute(farewell *Error) error
	// Phase returns the phase of the conversation.
	Phase() Phase
	// canPeerClose reports whether the peer may close now without a reason.
	canPeerClose() bool
}

func newLink(t Transport, config EndpointConfig) *link {
	l := &link{
		transport: t, config: config.withDefaults(),
		sending: make(chan struct{}, 1), done: make(chan struct{}), told: make(chan struct{}),
		finished: make(chan struct{}), begun: time.Now(),
	}
	l.sendLimit.Store(int64(min(MinMessageSize, t.MaxMessageSize())))
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

func (l *link) start(owner linkOwner) {
	l.owner = owner
	go func() {
		defer close(l.finished)
		l.receive()
		l.finish()
	}()
}

// receive delivers messages until the link ends.
func (l *link) receive() {
	for {
		b, err := l.transport.Receive(l.ctx)
		if err != nil {
			l.receiveFailed(err)
			return
		}
		l.heard.Store(int64(time.Since(l.begun)))
		e, err := Decode(b)
		if err == nil {
			farewell, isError := e.Message.(*Error)
			keepAlive, isKeepAlive := e.Message.(*KeepAlive)
			switch {
			case isError && e.Correlation == 0:
				l.endByPeer(l.owner.attribute(farewell))
				return
			case !isKeepAlive:
				err = l.owner.deliver(e)
			case l.owner.Phase() == PhaseConnect:
				err = status.Errorf(status.BadState, "%v came before hello", KindKeepAlive)
			default:
				if err = l.config.OnKeepAlive(keepAlive); err == nil {
					l.config.Peers.join(l, keepAlive.Answer.Instance)
				}
			}
		}
		if err != nil {
			l.fail(fmt.Errorf("message from %s: %w", l.transport.RemoteName(), err))
			return
		}
	}
}

// receiveFailed ends the link after the connection was lost, or after the peer sent something that
// cannot be received. Only in the second case is somebody left to read a farewell.
func (l *link) receiveFailed(err error) {
	closed := errors.Is(err, status.NotConnected)
	if closed && !l.owner.canPeerClose() {
		err = status.Errorf(status.ConnectionReset, "lost the connection to %s: %w",
			l.transport.RemoteName(), err)
	}
	if closed || errors.Is(err, status.ConnectionReset) || isAlert(err) {
		l.end(err, nil)
		return
	}
	l.fail(err)
}

// receiveLimit returns the largest message that this side receives, in bytes.
func (l *link) receiveLimit() uint32 {
	return uint32(min(l.transport.MaxMessageSize(), math.MaxInt32))
}

// setSendLimit sets the largest message that may be sent from now on, in bytes.
func (l *link) setSendLimit(maxMessageSize uint32) {
	l.sendLimit.Store(min(int64(maxMessageSize), int64(l.transport.MaxMessageSize())))
}

// encode encodes e, and fails if the result is larger than the peer accepts.
func (l *link) encode(e *Envelope) ([]byte, error) {
	b, err := Encode(e)
	if err != nil {
		return nil, err
	}
	if limit := l.sendLimit.Load(); int64(len(b)) > limit {
		return nil, status.Errorf(status.TooBig, "%v has %d bytes, %s accepts at most %d",
			e.Message.Kind(), len(b), l.transport.RemoteName(), limit)
	}
	return b, nil
}

// send sends an encoded envelope and waits at most config.Timeout. A failure ends the link, because
// the peer has missed a message or received only part of one; send then returns the link's error.
func (l *link) send(ctx context.Context, b []byte) error {
	ctx, cancel := context.WithTimeout(ctx, l.config.Timeout)
	defer cancel()
	err := l.transmit(ctx, b)
	if err == nil {
		l.sent.Store(true)
		return nil
	}
	// Give the receiving goroutine time to find the peer's farewell, which says more than err.
	timer := time.NewTimer(farewellTimeout)
	defer timer.Stop()
	select {
	case <-l.done:
	case <-timer.C:
		l.end(err, nil)
	}
	return l.endError()
}

// transmit passes b to the transport, one goroutine at a time.
func (l *link) transmit(ctx context.Context, b []byte) error {
	select {
	case l.sending <- struct{}{}:
	case <-ctx.Done():
		return waitError(ctx, "send message to "+l.transport.RemoteName())
	}
	defer func() { <-l.sending }()
	if l.broken {
		return status.Errorf(status.ConnectionAborted, "send message to %s: an earlier send failed",
			l.transport.RemoteName())
	}
	err := l.transport.Send(ctx, b)
	l.broken = err != nil
	return err
}

// errClosed is the error of a link that this side has closed without a reason.
var errClosed = status.Errorf(status.Shutdown, "the connection was closed by this side")

// fail ends the link because of what the peer does or fails to do, and sends the peer the reason.
func (l *link) fail(reason error) {
	phase := l.owner.Phase()
	// Who postpones peers counts them; a warning each would say no more.
	if l.end(reason, report(reason, phase)) && RetryAfter(reason) == 0 {
		l.logFailure(phase, reason)
	}
}

// endByPeer ends the link because of the peer's farewell.
func (l *link) endByPeer(farewell error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leaving = l.endLocked(farewell, nil)
}

// end ends the link. Only the first call has an effect and returns true.
func (l *link) end(reason error, farewell *Error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.endLocked(reason, farewell)
}

func (l *link) endLocked(reason error, farewell *Error) bool {
	if l.err != nil {
		return false
	}
	l.err, l.farewell = reason, farewell
	close(l.done)
	l.cancel()
	return true
}

// endError returns why the link has ended, nil before.
func (l *link) endError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// close ends the link and waits until the transport is closed. It sends reason to the peer unless
// it is nil.
func (l *link) close(reason error) {
	l.leave(reason)
	<-l.finished
}

// leave ends the link and waits until reason has been sent, unless it is nil. It does not wait for
// the peer, which may never close.
func (l *link) leave(reason error) {
	if reason == nil {
		l.end(errClosed, nil)
	} else {
		l.end(reason, report(reason, l.owner.Phase()))
	}
	<-l.told
}

// finish sends the farewell, closes the transport, and waits for the link's goroutines to exit.
func (l *link) finish() {
	l.mu.Lock()
	reason, farewell, leaving, abort := l.err, l.farewell, l.leaving, l.abort
	l.mu.Unlock()
	l.config.Logger.Debug("control connection ended", l.describe(l.owner.Phase(), reason)...)
	if farewell != nil {
		l.tellNews()
		l.sendFarewell(farewell)
	}
	close(l.told)
	if leaving { // the reason does not tell: an *Error may have come from another peer
		l.awaitPeerClose()
	}
	if abort {
		l.transport.Abort()
	} else if err := l.transport.Close(); err != nil {
		l.config.Logger.Debug("aborted the control connection because closing it failed",
			zap.Error(err))
		l.transport.Abort()
	}
	l.config.Peers.leave(l)
	l.watchers.Wait()
}

func (l *link) lastHeard() time.Time { return l.begun.Add(time.Duration(l.heard.Load())) }

// sendFarewell tries to send the last message.
func (l *link) sendFarewell(farewell *Error) {
	ctx, cancel := context.WithTimeout(context.Background(), farewellTimeout)
	defer cancel()
	b, err := l.encode(&Envelope{Message: farewell})
	if err == nil {
		err = l.transmit(ctx, b)
	}
	if err != nil {
		l.config.Logger.Debug("cannot tell the peer why the control connection ends",
			zap.Error(err))
	}
}

// awaitPeerClose gives a peer that has sent a farewell the time to close first. Until this side
// closes, it can still receive what the peer sent before over other paths, for instance responses
// to a Comch consumer.
func (l *link) awaitPeerClose() {
	ctx, cancel := context.WithTimeout(context.Background(), peerCloseTimeout)
	defer cancel()
	for {
		if _, err := l.transport.Receive(ctx); err != nil {
			return
		}
	}
}

func (l *link) describe(phase Phase, reason error) []zap.Field {
	return []zap.Field{
		zap.String("peer", l.transport.RemoteName()), zap.Stringer("phase", phase),
		zap.Error(reason),
	}
}

// encodeKeepAlive returns a keep-alive with what this side has to say.
func (l *link) encodeKeepAlive() (*KeepAlive, []byte, error) {
	keepAlive := &KeepAlive{}
	l.config.Announce(keepAlive)
	b, err := l.encode(&Envelope{Message: keepAlive})
	return keepAlive, b, err
}

// sendKeepAlive sends a keep-alive. A failure ends the link.
func (l *link) sendKeepAlive() error {
	keepAlive, b, err := l.encodeKeepAlive()
	if err != nil {
		l.fail(err)
		return err
	}
	if err := l.send(context.Background(), b); err != nil {
		return err
	}
	l.config.Peers.join(l, keepAlive.Answer.Instance)
	return nil
}

// tellNews sends what announce has been called for and has perhaps not sent yet: the peer reads
// nothing after the farewell.
func (l *link) tellNews() {
	l.mu.Lock()
	told := l.news == 0
	l.mu.Unlock()
	if told {
		return
	}
	_, b, err := l.encodeKeepAlive()
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), farewellTimeout)
	defer cancel()
	_ = l.transmit(ctx, b) // if it fails, so does the farewell
}

// announce sends a keep-alive, and another one if there have been more calls meanwhile. It does not
// wait.
func (l *link) announce() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.news++
	if l.err != nil || l.news > 1 {
		return // nobody to tell, or the goroutine that already runs does it
	}
	l.watchers.Go(func() {
		for {
			l.mu.Lock()
			announced := l.news
			l.mu.Unlock()
			if l.sendKeepAlive() != nil {
				return
			}
			l.mu.Lock()
			if l.news -= announced; l.news == 0 {
				l.mu.Unlock()
				return
			}
			l.mu.Unlock()
		}
	})
}
