package emulated

import (
	"context"
	"errors"
	"testing"
)

// TestConnectAfterTheEndOfItsContextFails has the server's welcome wait in
// the socket, so that the handshake can succeed in spite of the context.
func TestConnectAfterTheEndOfItsContextFails(t *testing.T) {
	reason := errors.New("changed my mind")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(reason)
	for range 100 {
		c, server := newHalfConnection(t, clientRole)
		own := greeting{maxMessageSize: testTerms.maxMessageSize, receiveQueue: testTerms.receiveQueue}
		welcome := own.welcome()
		if err := server.write(&welcome, descriptors{}); err != nil {
			t.Fatal(err)
		}
		if _, err := greetServer(ctx, c.socket, own); !errors.Is(err, reason) {
			t.Errorf("got %v", err)
		}
		c.socket.close()
		server.close()
	}
}
