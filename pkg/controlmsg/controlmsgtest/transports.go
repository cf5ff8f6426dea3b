// SPDX-License-Identifier: Apache-2.0

package controlmsgtest

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Connect returns the two ends of a transport for one test, which closes or aborts both.
type Connect func(t testing.TB) (near, far controlmsg.Transport)

// RunTransport checks the promises of controlmsg.Transport, as subtests of t.
func RunTransport(t *testing.T, connect Connect) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, ctx context.Context, near, far controlmsg.Transport)
	}{
		{"MessagesArriveWholeAndInOrder", messagesArrive},
		{"AMessageIsNotKept", messageIsNotKept},
		{"AMessageThatIsTooBigIsNotSent", tooBig},
		{"CloseDeliversWhatWasSent", closeDelivers},
		{"AbortEndsAWait", abortEndsAWait},
		{"ContextsEndWaits", contextsEndWaits},
		{"ASessionRuns", sessionRuns},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
			defer cancel()
			near, far := connect(t)
			test.run(t, ctx, near, far)
			near.Abort()
			far.Abort()
		})
	}
}

func messagesArrive(t *testing.T, ctx context.Context, near, far controlmsg.Transport) {
	limit := min(near.MaxMessageSize(), far.MaxMessageSize())
	sizes := []int{1, 3, 4, 5, 64, limit - 1, limit}
	for _, ends := range [][2]controlmsg.Transport{{near, far}, {far, near}} {
		sent := make(chan error, 1)
		go func() {
			for i, size := range sizes {
				err := ends[0].Send(ctx, bytes.Repeat([]byte{byte(i)}, size))
				if err != nil {
					sent <- err
					return
				}
			}
			sent <- nil
		}()
		for i, size := range sizes {
			message, err := ends[1].Receive(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(message, bytes.Repeat([]byte{byte(i)}, size)) {
				t.Errorf("message %d of %d bytes arrived differently, with %d bytes", i, size,
					len(message))
			}
		}
		if err := <-sent; err != nil {
			t.Error(err)
		}
	}
}

func messageIsNotKept(t *testing.T, ctx context.Context, near, far controlmsg.Transport) {
	message := []byte("first")
	if err := near.Send(ctx, message); err != nil {
		t.Fatal(err)
	}
	copy(message, "other")
	if got, err := far.Receive(ctx); err != nil || string(got) != "first" {
		t.Errorf("received %q, %v", got, err)
	}
}

func tooBig(t *testing.T, ctx context.Context, near, far controlmsg.Transport) {
	err := near.Send(ctx, make([]byte, near.MaxMessageSize()+1))
	if !errors.Is(err, status.TooBig) {
		t.Errorf("Send returned %v", err)
	}
	if near.RemoteName() == "" || far.RemoteName() == "" {
		t.Error("a peer has no name")
	}
}

func closeDelivers(t *testing.T, ctx context.Context, near, far controlmsg.Transport) {
	if err := near.Send(ctx, []byte("farewell")); err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	go func() { closed <- near.Close() }()
	if message, err := far.Receive(ctx); err != nil || string(message) != "farewell" {
		t.Errorf("received %q, %v", message, err)
	}
	if _, err := far.Receive(ctx); !errors.Is(err, status.NotConnected) {
		t.Errorf("after the end, Receive returned %v", err)
	}
	if err := errors.Join(far.Close(), <-closed); err != nil {
		t.Error(err)
	}
}

func abortEndsAWait(t *testing.T, ctx context.Context, near, far controlmsg.Transport) {
	ended := make(chan error, 1)
	go func() {
		_, err := near.Receive(ctx)
		ended <- err
	}()
	near.Abort()
	if err := <-ended; err == nil {
		t.Error("Receive returned a message that nobody has sent")
	}
	if _, err := far.Receive(ctx); err == nil {
		t.Error("the peer of an aborted transport received a message")
	}
}

func contextsEndWaits(t *testing.T, _ context.Context, near, far controlmsg.Transport) {
	expired, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := near.Receive(expired); !errors.Is(err, status.TimeOut) {
		t.Errorf("after its deadline, Receive returned %v", err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := far.Receive(cancelled); !errors.Is(err, status.Shutdown) {
		t.Errorf("after its cancellation, Receive returned %v", err)
	}
}

func sessionRuns(t *testing.T, ctx context.Context, near, far controlmsg.Transport) {
	ServeOn(t, far, controlmsg.EndpointConfig{Role: controlmsg.RoleTarget},
		Accept(Volume(), netip.AddrPort{}))
	r := controlmsg.NewRequester(near, controlmsg.EndpointConfig{Role: controlmsg.RoleRelay})
	defer r.Close(nil)
	if _, err := r.Greet(ctx); err != nil {
		t.Fatal(err)
	}
	reply, err := controlmsg.Call(ctx, r, &controlmsg.OpenVolume{Volume: "disk"})
	if err != nil || reply.Size != Volume().Size {
		t.Errorf("the volume has %+v, %v", reply, err)
	}
}
