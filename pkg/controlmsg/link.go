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

// EndpointConfig configures a Requester or a Responder. Role is required.
type EndpointConfig struct {
	// Codec is the native one if nil.
	Codec Codec
	// Role is this side's: with its being requester or responder it selects
	// the conversation.
	Role Role
	// Timeout bounds each wait: for the answer to a request, for the peer to
	// take a message, and for the next request while the peer sets up its
	// session. 0 means DefaultTimeout.
	Timeout time.Duration
	// KeepAlive watches over the peer. The zero value is for transports that
	// notice a lost peer by themselves, like Comch.
	KeepAlive KeepAliveConfig
	// Software is this side's name and version, told to the peer.
	Software string
	// Logger may be nil.
	Logger *zap.Logger
}

func (c EndpointConfig) withDefaults() EndpointConfig {
	if c.Codec == nil {
		c.Codec = NewProtobufCodec()
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.Software == "" {
		c.Software = "zc-relay"
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	c.KeepAlive = c.KeepAlive.withDefaults()
	return c
}

// link is what both kinds of endpoints have in common: a goroutine that
// receives, the right to send, and one end with one reason.
//
// Any goroutine may end the link. The receiving goroutine then leaves
// Receive, tells the peer the reason, closes the transport and is gone:
// nobody else has to clean up.
type link struct {
	transport Transport
	config    EndpointConfig
	owner     linkOwner
	sendLimit atomic.Int64  // largest message that the peer takes, in bytes
	turn      chan struct{} // filled by whoever sends
	broken    bool          // a send has failed; guarded by turn

	ctx      context.Context // of Receive; ends with the link
	cancel   context.CancelFunc
	done     chan struct{} // closed when the link has ended
	finished chan struct{} // closed when nothing of it is left
	watchers sync.WaitGroup
	heard    atomic.Bool // since the watch looked last
	sent     atomic.Bool // since the watch looked last

	mu       sync.Mutex // guards what follows
	err      error      // why the link has ended
	farewell *Error     // what the peer is told at the end; nil if nothing
	abort    bool       // do not wait for the peer at the end
}

// linkOwner is the endpoint that a link belongs to. Its methods are called by
// any goroutine.
type linkOwner interface {
	// deliver takes a message that is not the link's own. An error is a
	// violation of the protocol and ends the link.
	deliver(e *Envelope) error
	// Phase is where the conversation is.
	Phase() Phase
	// mayEnd reports whether a peer that closes now leaves nothing behind.
	mayEnd() bool
}

func newLink(t Transport, config EndpointConfig) *link {
	l := &link{
		transport: t, config: config.withDefaults(),
		turn: make(chan struct{}, 1), done: make(chan struct{}), finished: make(chan struct{}),
	}
	l.sendLimit.Store(int64(min(MinMessageSize, t.MaxMessageSize())))
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

func (l *link) start(owner linkOwner) {
	l.owner = owner
	go func() {
		defer close(l.finished)
		l.receiveAll()
		l.finish()
	}()
}

// receiveAll delivers messages until the link ends.
func (l *link) receiveAll() {
	for {
		b, err := l.transport.Receive(l.ctx)
		if err != nil {
			l.endReceive(err)
			return
		}
		l.heard.Store(true)
		e, err := l.config.Codec.Decode(b)
		if err == nil {
			err = l.dispatch(e)
		}
		if err != nil {
			l.end(fmt.Errorf("message from %s: %w", l.transport.RemoteName(), err))
			return
		}
	}
}

// endReceive ends the link after Receive has failed: the peer is gone, or it
// sends what cannot be received.
func (l *link) endReceive(err error) {
	gone := errors.Is(err, status.NotConnected)
	if gone && !l.owner.mayEnd() {
		err = status.Errorf(status.ConnectionReset, "the peer %s is gone: %w", l.transport.RemoteName(), err)
	}
	if gone || errors.Is(err, status.ConnectionReset) || isAlert(err) {
		l.endWith(err, nil)
		return
	}
	l.end(err)
}

func (l *link) dispatch(e *Envelope) error {
	switch m := e.Message.(type) {
	case *KeepAlive:
		if l.owner.Phase() == PhaseConnect {
			return status.Errorf(status.BadState, "%v came before the greeting", m.Kind())
		}
		return nil
	case *Error:
		if e.Correlation == 0 {
			l.endWith(m, nil)
			return nil
		}
	}
	return l.owner.deliver(e)
}

// receiveLimit is the largest message that this side receives, in bytes.
func (l *link) receiveLimit() uint32 { return uint32(min(l.transport.MaxMessageSize(), math.MaxInt32)) }

// agree sets the largest message that may be sent from now on, in bytes.
func (l *link) agree(maxMessageSize uint32) {
	l.sendLimit.Store(min(int64(maxMessageSize), int64(l.transport.MaxMessageSize())))
}

// encode returns the bytes of an envelope that the peer can take.
func (l *link) encode(e *Envelope) ([]byte, error) {
	b, err := l.config.Codec.Append(nil, e)
	if err != nil {
		return nil, err
	}
	if limit := l.sendLimit.Load(); int64(len(b)) > limit {
		return nil, status.Errorf(status.TooBig, "%v has %d bytes, %s takes at most %d",
			e.Message.Kind(), len(b), l.transport.RemoteName(), limit)
	}
	return b, nil
}

// send encodes and sends. Every failure ends the link.
func (l *link) send(ctx context.Context, e *Envelope) error {
	b, err := l.encode(e)
	if err != nil {
		l.end(err)
		return err
	}
	return l.sendBytes(ctx, b)
}

// sendBytes sends an encoded envelope, waiting at most config.Timeout. If it
// fails, the link has ended, because the peer misses a message or has part of
// one, and the error is the link's.
func (l *link) sendBytes(ctx context.Context, b []byte) error {
	ctx, cancel := context.WithTimeout(ctx, l.config.Timeout)
	defer cancel()
	if err := l.transmit(ctx, b); err != nil {
		return l.lost(err)
	}
	l.sent.Store(true)
	return nil
}

// transmit gives b to the transport when it is this goroutine's turn.
func (l *link) transmit(ctx context.Context, b []byte) error {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return waitError(ctx, "send message to "+l.transport.RemoteName())
	}
	defer func() { <-l.turn }()
	if l.broken {
		return status.Errorf(status.ConnectionAborted, "send message to %s: an earlier one failed", l.transport.RemoteName())
	}
	err := l.transport.Send(ctx, b)
	l.broken = err != nil
	return err
}

// lost ends the link after a send has failed. The receiving side gets the
// time to find what the peer said before it went, which tells more.
func (l *link) lost(err error) error {
	timer := time.NewTimer(lastWordsTimeout)
	defer timer.Stop()
	select {
	case <-l.done:
	case <-timer.C:
		l.endWith(err, nil)
	}
	return l.endError()
}

// lastWordsTimeout bounds how long the end of a connection waits for the
// reason to be told, by either side.
const lastWordsTimeout = time.Second

// errClosed is the reason of an end that this side wanted.
var errClosed = status.Errorf(status.Shutdown, "the connection was closed by this side")

// end ends the link because of what the peer does or fails to do, and tells
// it.
func (l *link) end(reason error) {
	phase := l.owner.Phase()
	if l.endWith(reason, report(reason, phase)) {
		l.config.Logger.Warn("control connection cut off", l.describe(phase, reason)...)
	}
}

// endWith ends the link. Only the first call has an effect, and returns true.
func (l *link) endWith(reason error, farewell *Error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return false
	}
	l.err, l.farewell = reason, farewell
	close(l.done)
	l.cancel()
	return true
}

func (l *link) describe(phase Phase, reason error) []zap.Field {
	return []zap.Field{
		zap.String("peer", l.transport.RemoteName()), zap.Stringer("phase", phase), zap.Error(reason),
	}
}

// endError is why the link has ended, nil before.
func (l *link) endError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// close ends the link and waits until nothing of it is left. A nil reason is
// not told.
func (l *link) close(reason error) {
	if reason == nil {
		l.endWith(errClosed, nil)
	} else {
		l.endWith(reason, report(reason, l.owner.Phase()))
	}
	<-l.finished
}

// finish tells the peer why, closes the transport and waits for the watch.
func (l *link) finish() {
	l.mu.Lock()
	reason, farewell, abort := l.err, l.farewell, l.abort
	l.mu.Unlock()
	l.config.Logger.Debug("control connection ended", l.describe(l.owner.Phase(), reason)...)
	if farewell != nil {
		l.tell(farewell)
	}
	if _, told := reason.(*Error); told {
		l.awaitPeer()
	}
	if abort {
		l.transport.Abort()
	} else if err := l.transport.Close(); err != nil {
		l.config.Logger.Debug("control connection closed without order", zap.Error(err))
		l.transport.Abort()
	}
	l.watchers.Wait()
}

// tell sends the last message, as far as that is possible.
func (l *link) tell(farewell *Error) {
	ctx, cancel := context.WithTimeout(context.Background(), lastWordsTimeout)
	defer cancel()
	b, err := l.encode(&Envelope{Message: farewell})
	if err == nil {
		err = l.transmit(ctx, b)
	}
	if err != nil {
		l.config.Logger.Debug("peer was not told why the control connection ends", zap.Error(err))
	}
}

// peerCloseTimeout bounds the wait for a peer that has said that it ends.
const peerCloseTimeout = 500 * time.Millisecond

// awaitPeer leaves the end of the transport to a peer that has told of it:
// what it sent before on other ways, answers in a Comch consumer for one, can
// be received until this side closes.
func (l *link) awaitPeer() {
	ctx, cancel := context.WithTimeout(context.Background(), peerCloseTimeout)
	defer cancel()
	for {
		if _, err := l.transport.Receive(ctx); err != nil {
			return
		}
	}
}

// KeepAliveConfig says how an endpoint watches over its peer.
type KeepAliveConfig struct {
	// Interval is how often to send something. 0 turns the watch off; this
	// side then sends keep-alives only if the peer asks for them.
	Interval time.Duration
	// DeadAfter is how long the peer may be silent; 0 means five intervals.
	DeadAfter time.Duration
}

// DefaultKeepAlive is the watch over a peer behind a network.
func DefaultKeepAlive() KeepAliveConfig {
	return KeepAliveConfig{Interval: time.Second, DeadAfter: 5 * time.Second}
}

func (c KeepAliveConfig) withDefaults() KeepAliveConfig {
	if c.Interval <= 0 {
		return KeepAliveConfig{}
	}
	if c.DeadAfter == 0 {
		c.DeadAfter = 5 * c.Interval
	}
	c.DeadAfter = max(c.DeadAfter, minSilenceLimit, c.Interval)
	return c
}

// silenceLimitMs is what the peer is told about it.
func (c KeepAliveConfig) silenceLimitMs() uint32 { return uint32(c.DeadAfter.Milliseconds()) }

// interval is how often to send something to a peer that has announced its
// limit, 0 if never. A quarter of the limit leaves room for delays.
func (c KeepAliveConfig) interval(peerSilenceLimitMs uint32) time.Duration {
	asked := time.Duration(peerSilenceLimitMs) * time.Millisecond / 4
	if c.Interval == 0 || asked == 0 {
		return c.Interval + asked
	}
	return min(c.Interval, asked)
}

// watch starts keeping the peer alive and under observation. It is called
// once, after the greeting.
func (l *link) watch(peerSilenceLimitMs uint32) {
	interval := l.config.KeepAlive.interval(peerSilenceLimitMs)
	l.mu.Lock()
	defer l.mu.Unlock()
	if interval == 0 || l.err != nil {
		return
	}
	l.watchers.Go(func() { l.watchEvery(interval) })
}

func (l *link) watchEvery(interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	quiet := newSilence(l.config.KeepAlive.DeadAfter, interval, time.Now())
	for {
		select {
		case <-l.done:
			return
		case <-ticker.C:
		}
		if quiet.observe(time.Now(), l.heard.Swap(false)) {
			l.giveUp(time.Since(quiet.since))
			return
		}
		if l.sent.Swap(false) {
			continue
		}
		if l.send(context.Background(), &Envelope{Message: &KeepAlive{}}) != nil {
			return // the link has ended
		}
	}
}

// giveUp ends the link to a peer that has been silent. What it is told, it
// will read if it ever wakes up.
func (l *link) giveUp(silence time.Duration) {
	l.mu.Lock()
	l.abort = true
	l.mu.Unlock()
	l.end(status.Errorf(status.TimeOut, "the peer %s has been silent for %v",
		l.transport.RemoteName(), silence.Round(time.Millisecond)))
}

// silence decides when a peer has been silent for too long. It counts the
// time in which this process has been running: after a pause of its own it
// starts anew, because what the peer sent meanwhile is still to be read. An
// observation that is merely late is no pause, or else a busy machine would
// never give a peer up.
type silence struct {
	limit time.Duration // 0: for ever
	since time.Time
	last  time.Time // previous observation
	pause time.Duration
}

func newSilence(limit, interval time.Duration, now time.Time) silence {
	return silence{limit: limit, since: now, last: now, pause: max(2*interval, limit/2)}
}

// observe is called once in each interval. heard tells whether a message has
// come since the last call. It returns true if the peer is to be given up.
func (s *silence) observe(now time.Time, heard bool) bool {
	paused := now.Sub(s.last) > s.pause
	s.last = now
	if heard || paused {
		s.since = now
		return false
	}
	return s.limit > 0 && now.Sub(s.since) >= s.limit
}
