package controlmsgtest

import (
	"testing"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
)

// Handler is the behaviour of an answering peer: what it replies to a
// request, or why it refuses it.
type Handler func(request controlmsg.Message) (controlmsg.Message, error)

// Serve runs a peer that answers with handler until the test ends, and
// returns the transport on which to ask it.
func Serve(t testing.TB, config controlmsg.EndpointConfig, handler Handler) controlmsg.Transport {
	t.Helper()
	near, far := NewPipe(controlmsg.DefaultMaxMessageSize)
	ServeOn(t, far, config, handler)
	return near
}

// ServeOn is Serve over any transport, which it owns from now on.
func ServeOn(t testing.TB, transport controlmsg.Transport, config controlmsg.EndpointConfig, handler Handler) *controlmsg.Responder {
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
