package controlmsg

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// lastWordsTimeout bounds how long the end of a connection waits for the
// reason to be told, by either side.
const lastWordsTimeout = time.Second

// errClosed is the reason of an end that this side wanted.
var errClosed = status.Errorf(status.Shutdown, "the connection was closed by this side")

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

// giveUp ends the link to a peer that has been silent. What it is told, it
// will read if it ever wakes up.
func (l *link) giveUp(silence time.Duration) {
	l.mu.Lock()
	l.abort = true
	l.mu.Unlock()
	l.end(status.Errorf(status.TimeOut, "the peer %s has been silent for %v",
		l.transport.RemoteName(), silence.Round(time.Millisecond)))
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
