// SPDX-License-Identifier: Apache-2.0

package controlmsgtest

import (
	"net/netip"
	"sync"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Handler returns the reply of a responding peer to a request, or the error with which it fails.
type Handler func(request controlmsg.Message) (controlmsg.Message, error)

// Serve runs a peer that answers with handler until the test ends. It returns the transport on
// which to send it requests.
func Serve(t testing.TB, config controlmsg.EndpointConfig, handler Handler) controlmsg.Transport {
	t.Helper()
	near, far := NewPipe(controlmsg.DefaultMaxMessageSize)
	ServeOn(t, far, config, handler)
	return near
}

// ServeOn is Serve over any transport, which it then owns.
func ServeOn(
	t testing.TB, transport controlmsg.Transport, config controlmsg.EndpointConfig, handler Handler,
) *controlmsg.Responder {
	t.Helper()
	responder := controlmsg.NewResponder(transport, config)
	served := make(chan struct{})
	go func() {
		defer close(served)
		serve(t, responder, handler)
	}()
	t.Cleanup(func() {
		responder.Close(nil)
		<-served
	})
	return responder
}

func serve(t testing.TB, responder *controlmsg.Responder, handler Handler) {
	for {
		request, err := responder.Next(t.Context())
		if err != nil {
			return
		}
		reply, err := handler(request.Message)
		if err != nil {
			err = responder.Fail(t.Context(), request.Correlation, err)
		} else {
			err = responder.Reply(t.Context(), request.Correlation, reply)
		}
		if err != nil && responder.Err() == nil {
			t.Errorf("peer: %v", err)
			responder.Close(err)
			return
		}
	}
}

// Accept returns a Handler that answers every request with success: OpenVolume with volume, and
// each CreateRDMAConnection with address and a token that begins with queue and role.
func Accept(volume controlmsg.OpenVolumeReply, address netip.AddrPort) Handler {
	return func(request controlmsg.Message) (controlmsg.Message, error) {
		switch r := request.(type) {
		case *controlmsg.OpenVolume:
			reply := volume
			return &reply, nil
		case *controlmsg.ConfigureDataPath:
			return &controlmsg.ConfigureDataPathReply{InboundReads: r.Depth}, nil
		case *controlmsg.CreateRDMAConnection:
			token := [16]byte{byte(r.Queue >> 8), byte(r.Queue), byte(r.Role)}
			return &controlmsg.CreateRDMAConnectionReply{Address: address, Token: token}, nil
		case *controlmsg.StartDataPathConnections:
			return &controlmsg.StartDataPathConnectionsReply{ConsumerIDs: r.ConsumerIDs}, nil
		case *controlmsg.StartStorage:
			return &controlmsg.StartStorageReply{}, nil
		case *controlmsg.Stop:
			return &controlmsg.StopReply{}, nil
		case *controlmsg.DestroyObjects:
			return &controlmsg.DestroyObjectsReply{}, nil
		}
		return nil, status.Errorf(status.Unexpected, "no reply to %v", request.Kind())
	}
}

// Volume returns a valid description of a volume, for tests that do not care which.
func Volume() controlmsg.OpenVolumeReply {
	return controlmsg.OpenVolumeReply{
		Volume: "test", UUID: [16]byte{1}, WriteVerifier: 1, Size: 1 << 20, BlockSize: 4096,
		MaxQueues: 4, MaxDepth: 64, MaxBufferSize: 1 << 20, Transport: "iwarp",
	}
}

// Expect returns a Handler that passes requests on to next. It fails the test unless, by its end,
// the requests were of exactly these kinds, in this order.
func Expect(t testing.TB, kinds []controlmsg.Kind, next Handler) Handler {
	t.Helper()
	var mu sync.Mutex
	remaining := append([]controlmsg.Kind(nil), kinds...)
	t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		if len(remaining) > 0 {
			t.Errorf("requests that never arrived: %v", remaining)
		}
	})
	return func(request controlmsg.Message) (controlmsg.Message, error) {
		mu.Lock()
		if len(remaining) == 0 || remaining[0] != request.Kind() {
			t.Errorf("got request %v, expected next of %v", request.Kind(), remaining)
		} else {
			remaining = remaining[1:]
		}
		mu.Unlock()
		return next(request)
	}
}

// FailOn returns a Handler that fails requests of one kind with err and passes others on to next.
func FailOn(kind controlmsg.Kind, err error, next Handler) Handler {
	return func(request controlmsg.Message) (controlmsg.Message, error) {
		if request.Kind() == kind {
			return nil, err
		}
		return next(request)
	}
}

// Raw is a peer that follows no rules: it sends whatever the test wants, whenever it wants.
type Raw struct {
	t         testing.TB
	transport controlmsg.Transport
}

// NewRaw returns a raw peer and the transport that leads to it.
func NewRaw(t testing.TB) (*Raw, controlmsg.Transport) {
	t.Helper()
	near, far := NewPipe(controlmsg.DefaultMaxMessageSize)
	t.Cleanup(far.Abort)
	return &Raw{t: t, transport: far}, near
}

// Send sends a message with the given correlation.
func (r *Raw) Send(correlation uint64, message controlmsg.Message) {
	r.t.Helper()
	b, err := controlmsg.Encode(&controlmsg.Envelope{Correlation: correlation, Message: message})
	if err != nil {
		r.t.Fatalf("encode %v: %v", message.Kind(), err)
	}
	r.SendBytes(b)
}

// SendBytes sends bytes that need not be a message.
func (r *Raw) SendBytes(b []byte) {
	r.t.Helper()
	if err := r.transport.Send(r.t.Context(), b); err != nil {
		r.t.Fatalf("send %d bytes: %v", len(b), err)
	}
}

// Receive waits for a message, which may be a keep-alive.
func (r *Raw) Receive() controlmsg.Envelope {
	r.t.Helper()
	b, err := r.transport.Receive(r.t.Context())
	if err != nil {
		r.t.Fatalf("receive: %v", err)
	}
	e, err := controlmsg.Decode(b)
	if err != nil {
		r.t.Fatalf("receive: %v", err)
	}
	return *e
}

// Close closes the peer's end without a reason.
func (r *Raw) Close() { r.transport.Abort() }
