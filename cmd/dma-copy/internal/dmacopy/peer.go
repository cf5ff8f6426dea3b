// SPDX-License-Identifier: Apache-2.0

package dmacopy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/printable"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// peer is the other side of a copy, as seen from here.
type peer struct {
	connection comch.Connection
	name       string // "host" or "DPU"
	timeout    time.Duration
	log        *zap.Logger

	keepingAlive sync.WaitGroup
	stopAlive    context.CancelFunc
}

// aliveFraction is the number of signs of life that a side sends within the peer's timeout.
const aliveFraction = 4

// sendFailureTimeout bounds sending the reason for the end of a copy.
const sendFailureTimeout = time.Second

func newPeer(connection comch.Connection, name string, config *Config) *peer {
	return &peer{connection: connection, name: name, timeout: config.Timeout, log: config.Logger}
}

// keepAlive sends signs of life until ctx ends, so that the peer does not take this side for dead
// while it is busy.
func (p *peer) keepAlive(ctx context.Context) {
	ctx, p.stopAlive = context.WithCancel(ctx)
	p.keepingAlive.Go(func() {
		tick := time.NewTicker(max(p.timeout/aliveFraction, time.Millisecond))
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if err := p.send(ctx, alive{}); err != nil && !errors.Is(err, status.TimeOut) {
					return // the receiving goroutine will get the reason
				}
			}
		}
	})
}

func (p *peer) send(ctx context.Context, m message) error { return p.sendBytes(ctx, encode(m)) }

func (p *peer) sendBytes(ctx context.Context, b []byte) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	return p.explain(p.connection.Send(ctx, b))
}

func (p *peer) receiveBytes(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	b, err := p.connection.Receive(ctx)
	return b, p.explain(err)
}

// receive waits for the next message, skipping signs of life. It returns a status with an error as
// that error.
func (p *peer) receive(ctx context.Context) (message, error) {
	for {
		b, err := p.receiveBytes(ctx)
		if err != nil {
			return nil, err
		}
		m, err := parse(b)
		if err != nil {
			return nil, fmt.Errorf("message from the %s: %w", p.name, err)
		}
		switch m := m.(type) {
		case alive:
			continue
		case outcome:
			if m.code != status.Success {
				return nil, &peerError{err: status.Errorf(m.code, "the %s reports: %s", p.name,
					printable.Line(m.text, maxText))}
			}
		}
		return m, nil
	}
}

// peerError is a failure that the peer reported, so that it need not be sent back.
type peerError struct{ err error }

func (e *peerError) Error() string { return e.err.Error() }
func (e *peerError) Unwrap() error { return e.err }

// explain adds the likely meaning of a failed exchange.
func (p *peer) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return status.Errorf(status.TimeOut,
			"no message from the %s for %v: is it stopped, or is --timeout too short? %w", p.name,
			p.timeout, err)
	case errors.Is(err, status.NotConnected):
		return status.Errorf(status.ConnectionReset,
			"the %s disconnected before the copy was complete: %w", p.name, err)
	}
	return err
}

// cancelUnlessGone cancels everything else after a failure, except a failure to send to a peer that
// has disconnected: its final message is still to be received.
func cancelUnlessGone(cancel context.CancelCauseFunc, err error) {
	if err != nil && !errors.Is(err, status.ConnectionReset) {
		cancel(err)
	}
}

// unexpected returns the error for a message that is out of place.
func (p *peer) unexpected(m message, want string) error {
	return status.Errorf(status.Unexpected, "the %s sent a message of kind %d instead of %s",
		p.name, m.kind(), want)
}

// close ends the connection. It reports failure to the peer, unless the peer reported it.
func (p *peer) close(failure error, sendFailure func(context.Context, error) error) {
	if p.stopAlive != nil {
		p.stopAlive()
		p.keepingAlive.Wait()
	}
	var reported *peerError
	if failure != nil && !errors.As(failure, &reported) {
		ctx, cancel := context.WithTimeout(context.Background(), sendFailureTimeout)
		defer cancel()
		if err := sendFailure(ctx, failure); err != nil {
			p.log.Debug("report failure to the peer", zap.Error(err))
		}
	}
	if err := p.connection.Close(); err != nil {
		p.log.Warn("close connection", zap.Error(err))
		p.connection.Abort()
	}
}

// sendFailure reports a failure to the peer.
func (p *peer) sendFailure(ctx context.Context, failure error) error {
	code := status.CodeOf(failure)
	if code == status.Success {
		code = status.Unknown
	}
	return p.send(ctx, outcome{code: code, text: failure.Error()})
}
