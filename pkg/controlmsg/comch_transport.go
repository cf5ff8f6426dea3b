package controlmsg

import (
	"context"
	"fmt"

	"github.com/zc-relay/zc-relay/pkg/comch"
)

// comchTransport carries one message per Comch control message.
type comchTransport struct {
	connection comch.Connection
}

// NewComchTransport returns a transport over the control messages of
// connection. Closing the transport closes the connection: in order if it has
// no consumers and producers any more, else at once.
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
		return fmt.Errorf("close connection to %s in order: %w", t.RemoteName(), err)
	}
	return nil
}

func (t *comchTransport) Abort() { t.connection.Abort() }

func (t *comchTransport) RemoteName() string {
	peer := t.connection.Peer()
	return fmt.Sprintf("process %d of user %d", peer.PID, peer.UID)
}
