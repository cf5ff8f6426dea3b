package controlmsg

import "context"

// Transport carries whole messages to one peer and back, in order. One
// goroutine may send while another receives; not more of either.
//
// An error of Send or Receive ends the transport: what follows is undefined
// until Close or Abort. Errors carry these codes: status.NotConnected if the
// peer has closed between two messages, status.ConnectionReset if the
// connection was lost, status.TooBig if the peer sends more than
// MaxMessageSize, status.TimeOut if a context or a bound of the transport
// itself has ended the wait.
type Transport interface {
	// Send sends one message. The message is not kept. If it is longer than
	// MaxMessageSize, it fails with status.TooBig and sends nothing.
	Send(ctx context.Context, message []byte) error
	// Receive waits for the next message, which the caller then owns.
	Receive(ctx context.Context) ([]byte, error)
	// MaxMessageSize is the largest message in bytes, in both directions.
	MaxMessageSize() int
	// Close ends the connection in order: everything sent reaches a peer
	// that reads it. It takes a bounded time and must not overlap Receive.
	Close() error
	// Abort ends the connection at once. It may be called at any time.
	Abort()
	// RemoteName names the peer, for logs.
	RemoteName() string
}
