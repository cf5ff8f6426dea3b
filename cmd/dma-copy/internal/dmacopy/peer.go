package dmacopy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// peer is the other side of a copy.
type peer struct {
	connection comch.Connection
	name       string // "host" or "DPU"
	timeout    time.Duration
	log        *zap.Logger

	keepingAlive sync.WaitGroup
	stopAlive    context.CancelFunc
}

// aliveFraction is how often a side says that it is there within the time after
// which the other gives up.
const aliveFraction = 4

// farewellTimeout bounds telling the other side why a copy ends.
const farewellTimeout = time.Second

func newPeer(connection comch.Connection, name string, config *Config) *peer {
	return &peer{connection: connection, name: name, timeout: config.Timeout, log: config.Logger}
}

// keepAlive lets the peer know that this side is busy, not dead.
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
					return // whoever receives will find out why
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

// receive waits for the next message that says anything. A status with an error
// is returned as that error.
func (p *peer) receive(ctx context.Context) (message, error) {
	for {
		b, err := p.receiveBytes(ctx)
		if err != nil {
			return nil, err
		}
		m, err := parse(b)
		if err != nil {
			return nil, fmt.Errorf("message of the %s: %w", p.name, err)
		}
		switch m := m.(type) {
		case alive:
			continue
		case outcome:
			if m.code != status.Success {
				return nil, &peerError{err: status.Errorf(m.code, "the %s says: %s", p.name, printable(m.text))}
			}
		}
		return m, nil
	}
}

// peerError is a failure that the peer has told of, and need not hear again.
type peerError struct{ err error }

func (e *peerError) Error() string { return e.err.Error() }
func (e *peerError) Unwrap() error { return e.err }

// printable is text of a peer that does no harm on a terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}

// explain says of a failed exchange what it means.
func (p *peer) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return status.Errorf(status.TimeOut, "the %s has not said anything for %v: is it stopped, or is --timeout too short? %w", p.name, p.timeout, err)
	case errors.Is(err, status.NotConnected):
		return status.Errorf(status.ConnectionReset, "the %s went away before the copy was complete: %w", p.name, err)
	}
	return err
}

// cancelUnlessGone makes a failure end everything else, except that of sending
// to a peer that has gone: its last words are still to be received.
func cancelUnlessGone(cancel context.CancelCauseFunc, err error) {
	if err != nil && !errors.Is(err, status.ConnectionReset) {
		cancel(err)
	}
}

// unexpected is the error for a message that does not belong here.
func (p *peer) unexpected(m message, want string) error {
	return status.Errorf(status.Unexpected, "the %s sent a message of kind %d, expected was %s", p.name, m.kind(), want)
}

// close ends the connection; the peer hears of failure, unless it is its own.
func (p *peer) close(failure error, farewell func(context.Context, error) error) {
	if p.stopAlive != nil {
		p.stopAlive()
		p.keepingAlive.Wait()
	}
	var told *peerError
	if failure != nil && !errors.As(failure, &told) {
		ctx, cancel := context.WithTimeout(context.Background(), farewellTimeout)
		defer cancel()
		if err := farewell(ctx, failure); err != nil {
			p.log.Debug("could not tell the other side", zap.Error(err))
		}
	}
	if err := p.connection.Close(); err != nil {
		p.log.Warn("close connection", zap.Error(err))
		p.connection.Abort()
	}
}

// farewell tells the peer what went wrong.
func (p *peer) farewell(ctx context.Context, failure error) error {
	code := status.CodeOf(failure)
	if code == status.Success {
		code = status.Unknown
	}
	return p.send(ctx, outcome{code: code, text: failure.Error()})
}
