package controlmsg

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/zc-relay/zc-relay/pkg/controlmsg/internal/controlpb"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// protobufCodec is the native codec. It has no state.
type protobufCodec struct{}

// NewProtobufCodec returns the native codec: protocol buffers as defined in
// proto/zc/relay/control/v1. Unknown fields are ignored.
func NewProtobufCodec() Codec { return protobufCodec{} }

func (protobufCodec) Name() string { return "protobuf" }

func (protobufCodec) Append(dst []byte, e *Envelope) ([]byte, error) {
	if err := Validate(e.Message); err != nil {
		return nil, fmt.Errorf("encode %v: %w", e.Message.Kind(), err)
	}
	wire := &controlpb.Envelope{Correlation: e.Correlation}
	encodeMessage(wire, e.Message)
	b, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(dst, wire)
	if err != nil {
		return nil, fmt.Errorf("encode %v: %w", e.Message.Kind(), err)
	}
	return b, nil
}

func (protobufCodec) Decode(b []byte) (*Envelope, error) {
	var wire controlpb.Envelope
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, &wire); err != nil {
		return nil, status.Errorf(status.InvalidValue, "decode message of %d bytes: %w", len(b), err)
	}
	message, err := decodeMessage(&wire)
	if err != nil {
		return nil, fmt.Errorf("decode message of %d bytes: %w", len(b), err)
	}
	if err := Validate(message); err != nil {
		return nil, fmt.Errorf("decode %v: %w", message.Kind(), err)
	}
	return &Envelope{Correlation: wire.Correlation, Message: message}, nil
}
