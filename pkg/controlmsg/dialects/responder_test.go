// SPDX-License-Identifier: Apache-2.0

package dialects_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// queuedTransport has received all requests that its peer sends. It accepts every answer.
type queuedTransport struct {
	controlmsg.Transport
	requests chan []byte
}

func (q *queuedTransport) Receive(ctx context.Context) ([]byte, error) {
	select {
	case b := <-q.requests:
		return b, nil
	default:
	}
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

func (q *queuedTransport) Send(context.Context, []byte) error { return nil }

// stoppingHandler accepts every request. Its data path stops when stopped is closed.
type stoppingHandler struct {
	dialects.Handler
	running, stopped chan struct{}
}

func (h *stoppingHandler) InitStorage(context.Context, *dialects.InitStorage) error { return nil }

func (h *stoppingHandler) StartConnections(context.Context) error { return nil }

func (h *stoppingHandler) Stopped() <-chan struct{} { return h.stopped }

func (h *stoppingHandler) StartStorage(context.Context) error {
	close(h.running)
	return nil
}

// In 2.10 an IO message ends the data path, so the peer has no time limit before it, and one after
// it.
func TestAPeerOf2_10HasToEndAfterItHasStopped(t *testing.T) {
	for _, isTarget := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) { endAfterStop(t, isTarget) })
	}
}

func endAfterStop(t *testing.T, isTarget bool) {
	transport := &queuedTransport{requests: make(chan []byte, 3)}
	for i, m := range []dialects.Message{&dialects.InitStorage{},
		&dialects.StartConnections{}, &dialects.StartStorage{}} {
		b, err := dialects.Encode(dialects.DOCA2_10,
			&dialects.Envelope{Correlation: uint32(i), Message: m})
		if err != nil {
			t.Fatal(err)
		}
		transport.requests <- b
	}
	h := &stoppingHandler{running: make(chan struct{}), stopped: make(chan struct{})}
	const timeout = time.Minute
	r := dialects.NewResponder(transport, dialects.ResponderConfig{Handler: h,
		Version: dialects.DOCA2_10, IsTarget: isTarget, Timeout: timeout,
		OnFailure: func(request string, err error) { t.Errorf("%s: %v", request, err) }})
	ended := make(chan error, 1)
	go func() { ended <- r.Serve(t.Context()) }()
	<-h.running
	time.Sleep(100 * timeout)
	select {
	case err := <-ended:
		t.Fatalf("while the data path runs: %v", err)
	default:
	}
	stopped := time.Now()
	close(h.stopped)
	if err := <-ended; status.CodeOf(err) != status.TimeOut || time.Since(stopped) != timeout {
		t.Errorf("%v after it has stopped: %v", time.Since(stopped), err)
	}
}
