// SPDX-License-Identifier: Apache-2.0

package controlmsg

import (
	"context"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Transport carries whole messages to and from one peer, in order. One goroutine may send while
// another receives.
//
// An error of Send or Receive ends the transport: only Close and Abort are defined afterwards.
// Errors carry these codes: status.NotConnected if the peer has closed between two messages,
// status.ConnectionReset if the connection was lost, status.TooBig if the peer sends more than
// MaxMessageSize, status.TimeOut if a deadline or a timeout of the transport has ended the wait,
// status.Shutdown if the context was cancelled.
type Transport interface {
	// Send sends one message and does not keep it. A message longer than MaxMessageSize is not sent
	// and fails with status.TooBig.
	Send(ctx context.Context, message []byte) error
	// Receive waits for the next message. The caller owns it.
	Receive(ctx context.Context) ([]byte, error)
	// MaxMessageSize returns the largest message in bytes, in both directions.
	MaxMessageSize() int
	// Close ends the connection gracefully: a peer that keeps reading gets everything that was
	// sent. It takes a bounded time and must not overlap Receive.
	Close() error
	// Abort ends the connection at once. It may be called at any time.
	Abort()
	// RemoteName identifies the peer in logs.
	RemoteName() string
}

// waitError returns the error of a wait that a context has ended: status.TimeOut, or
// status.Shutdown if the context was cancelled.
func waitError(ctx context.Context, what string) error {
	cause := status.ContextError(ctx)
	return status.Errorf(status.CodeOf(cause), "%s: %w", what, cause)
}

// comchTransport sends each message as one Comch control message.
type comchTransport struct {
	connection comch.Connection
}

// NewComchTransport returns a transport over the control messages of connection. Closing the
// transport closes the connection: gracefully if all its consumers and producers are closed,
// otherwise at once.
func NewComchTransport(connection comch.Connection) Transport {
	return &comchTransport{connection: connection}
}

func (t *comchTransport) Send(ctx context.Context, message []byte) error {
	if err := t.connection.Send(ctx, message); err != nil {
		return fmt.Errorf("send message to %s: %w", t.RemoteName(), err)
	}
	return nil
}

func (t *comchTransport) Receive(ctx context.Context) ([]byte, error) {
	message, err := t.connection.Receive(ctx)
	if err != nil {
		return nil, fmt.Errorf("receive message from %s: %w", t.RemoteName(), err)
	}
	return message, nil
}

func (t *comchTransport) MaxMessageSize() int { return t.connection.MaxMessageSize() }

func (t *comchTransport) Close() error {
	if err := t.connection.Close(); err != nil {
		t.connection.Abort()
		return fmt.Errorf("close connection to %s gracefully: %w", t.RemoteName(), err)
	}
	return nil
}

func (t *comchTransport) Abort() { t.connection.Abort() }

func (t *comchTransport) RemoteName() string {
	return t.connection.Peer().String()
}
