package comchtest

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// wantCode fails the test unless err carries the code.
func wantCode(t *testing.T, what string, err error, code status.Code) {
	t.Helper()
	if !errors.Is(err, code) {
		t.Errorf("%s: got error %v, want %v", what, err, code)
	}
}

// await polls condition until it holds.
func await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not happen within %v", what, patience)
		}
		runtime.Gosched()
	}
}

// awaitDone waits for the end of a connection.
func awaitDone(t *testing.T, connection comch.Connection) {
	t.Helper()
	select {
	case <-connection.Done():
	case <-time.After(patience):
		t.Fatalf("connection has not ended within %v", patience)
	}
}

// awaitReceived polls until a receive completes.
func awaitReceived(t *testing.T, consumer comch.Consumer) comch.Received {
	t.Helper()
	var received [1]comch.Received
	await(t, "a message", func() bool { return consumer.Poll(received[:]) == 1 })
	return received[0]
}

func closeAll(t *testing.T, closers ...interface{ Close() error }) {
	t.Helper()
	for _, c := range closers {
		if err := c.Close(); err != nil {
			t.Errorf("close %T: %v", c, err)
		}
	}
}
