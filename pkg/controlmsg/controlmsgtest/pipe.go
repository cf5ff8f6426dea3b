// SPDX-License-Identifier: Apache-2.0

// Package controlmsgtest provides an in-memory transport and scripted peers, to test users of the
// control protocol.
package controlmsgtest

import (
	"context"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// pipeCapacity is how many messages fit into one direction before Send blocks.
const pipeCapacity = 16

// pipe is one end of an in-memory transport.
type pipe struct {
	name     string
	limit    int
	incoming chan []byte
	peer     *pipe
	once     sync.Once
	closed   chan struct{}
}

// NewPipe returns the two ends of an in-memory transport. It works in a testing/synctest bubble,
// because it uses channels only.
func NewPipe(maxMessageSize int) (controlmsg.Transport, controlmsg.Transport) {
	near := newPipeEnd("far end", maxMessageSize)
	far := newPipeEnd("near end", maxMessageSize)
	near.peer, far.peer = far, near
	return near, far
}

func newPipeEnd(remoteName string, limit int) *pipe {
	return &pipe{
		name: remoteName, limit: limit,
		incoming: make(chan []byte, pipeCapacity), closed: make(chan struct{}),
	}
}

func (p *pipe) Send(ctx context.Context, message []byte) error {
	if len(message) == 0 || len(message) > p.limit {
		return status.Errorf(status.TooBig, "send message of %d bytes: must have 1 to %d",
			len(message), p.limit)
	}
	select {
	case <-p.closed:
		return status.Errorf(status.NotConnected, "send message: the pipe is closed")
	case <-p.peer.closed:
		return status.Errorf(status.ConnectionReset, "send message: the peer has closed the pipe")
	case <-ctx.Done():
		return waitError(ctx, "send message")
	case p.peer.incoming <- append([]byte(nil), message...):
		return nil
	}
}

func (p *pipe) Receive(ctx context.Context) ([]byte, error) {
	select {
	case message := <-p.incoming:
		return message, nil
	default:
	}
	select {
	case message := <-p.incoming:
		return message, nil
	case <-p.closed:
		return nil, status.Errorf(status.NotConnected, "receive message: the pipe is closed")
	case <-p.peer.closed:
	case <-ctx.Done():
		return nil, waitError(ctx, "receive message")
	}
	select {
	case message := <-p.incoming: // sent before the peer closed
		return message, nil
	default:
		return nil, status.Errorf(status.NotConnected,
			"receive message: the peer has closed the pipe")
	}
}

func waitError(ctx context.Context, what string) error {
	cause := context.Cause(ctx)
	return status.Errorf(status.CodeOf(cause), "%s: %w", what, cause)
}

func (p *pipe) MaxMessageSize() int { return p.limit }

func (p *pipe) RemoteName() string { return p.name }

func (p *pipe) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipe) Abort() { _ = p.Close() }
