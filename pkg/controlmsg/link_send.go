package controlmsg

import (
	"context"
	"math"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/status"
)

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
