// SPDX-License-Identifier: Apache-2.0

// Package hook wraps any transport of control messages. The wrapper forwards everything, and
// traces, delays, fails, drops, duplicates, corrupts, or freezes messages by fault rules.
//
// The operations of the seam "control" are send and receive. The condition kind=NAME restricts a
// rule to one kind of message; the names are those of controlmsg.Kind, such as "open_volume_reply".
// If a message is dropped, the transport is aborted.
package hook

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/fault"
)

// Config configures the hooks.
type Config struct {
	// Injector holds the rules; nil means none.
	Injector *fault.Injector
}

// Wrap returns inner with hooks, or inner itself if there are no rules for the seam.
func Wrap(inner controlmsg.Transport, config Config) controlmsg.Transport {
	if !config.Injector.Has(fault.Control) {
		return inner
	}
	return &transport{
		Transport: inner, ended: make(chan struct{}),
		send:    config.Injector.Point(fault.Control, "send"),
		receive: config.Injector.Point(fault.Control, "receive"),
	}
}

type transport struct {
	controlmsg.Transport
	send, receive *fault.Point

	ending sync.Once
	ended  chan struct{} // closed by Close and Abort, which end what rules hold back
}

// Send sends one message.
func (t *transport) Send(ctx context.Context, message []byte) error {
	hit, err := t.enter(ctx, t.send, message)
	if err != nil {
		return fmt.Errorf("send message to %s: %w", t.RemoteName(), err)
	}
	switch hit.Action {
	case fault.Drop:
		t.Abort()
		return fmt.Errorf("send message to %s: %w", t.RemoteName(), hit.Lost())
	case fault.Corrupt:
		message = slices.Clone(message)
		hit.Corrupt(message)
	case fault.Duplicate:
		if err := t.Transport.Send(ctx, message); err != nil {
			return err
		}
	}
	return t.Transport.Send(ctx, message)
}

// Receive waits for the next message.
func (t *transport) Receive(ctx context.Context) ([]byte, error) {
	message, err := t.Transport.Receive(ctx)
	if err != nil {
		return nil, err
	}
	hit, err := t.enter(ctx, t.receive, message)
	if err != nil {
		return nil, fmt.Errorf("receive message from %s: %w", t.RemoteName(), err)
	}
	switch hit.Action {
	case fault.Drop:
		t.Abort()
		return nil, fmt.Errorf("receive message from %s: %w", t.RemoteName(), hit.Lost())
	case fault.Corrupt:
		hit.Corrupt(message)
	}
	return message, nil
}

// enter applies the rules of an operation to a message.
func (t *transport) enter(ctx context.Context, p *fault.Point, message []byte) (fault.Hit, error) {
	kind := ""
	if p.NeedsKind() {
		if envelope, err := controlmsg.Decode(message); err == nil {
			kind = envelope.Message.Kind().String()
		}
	}
	hit := p.NextOf(uint64(len(message)), kind)
	if err := p.Carry(ctx, t.ended, hit); err != nil || !hit.Stalls() {
		return hit, err
	}
	select {
	case <-t.ended:
		return hit, hit.Lost()
	default:
		return hit, nil
	}
}

// Close ends the connection gracefully.
func (t *transport) Close() error {
	t.end()
	return t.Transport.Close()
}

// Abort ends the connection at once.
func (t *transport) Abort() {
	t.end()
	t.Transport.Abort()
}

func (t *transport) end() { t.ending.Do(func() { close(t.ended) }) }
