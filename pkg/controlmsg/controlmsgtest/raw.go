package controlmsgtest

import (
	"testing"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
)

// Raw is a peer without rules: it sends whatever the test wants, whenever.
type Raw struct {
	t         testing.TB
	transport controlmsg.Transport
	codec     controlmsg.Codec
}

// NewRaw returns a peer without rules and the transport to reach it.
func NewRaw(t testing.TB) (*Raw, controlmsg.Transport) {
	t.Helper()
	near, far := NewPipe(controlmsg.DefaultMaxMessageSize)
	t.Cleanup(far.Abort)
	return &Raw{t: t, transport: far, codec: controlmsg.NewProtobufCodec()}, near
}

// Send sends a message with the given correlation.
func (r *Raw) Send(correlation uint64, message controlmsg.Message) {
	r.t.Helper()
	b, err := r.codec.Append(nil, &controlmsg.Envelope{Correlation: correlation, Message: message})
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

// Receive waits for a message, keep-alives included.
func (r *Raw) Receive() controlmsg.Envelope {
	r.t.Helper()
	b, err := r.transport.Receive(r.t.Context())
	if err != nil {
		r.t.Fatalf("receive: %v", err)
	}
	e, err := r.codec.Decode(b)
	if err != nil {
		r.t.Fatalf("receive: %v", err)
	}
	return *e
}

// Close closes the peer's end without a word.
func (r *Raw) Close() { r.transport.Abort() }
