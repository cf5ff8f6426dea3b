package relay

import (
	"context"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Protocol is what a channel's clients speak: ProtocolAuto, ProtocolNative, or the name of a
// dialects.Version, such as "doca-2.10".
type Protocol string

const (
	// ProtocolAuto lets a client's first message decide.
	ProtocolAuto Protocol = "auto"
	// ProtocolNative is our own.
	ProtocolNative Protocol = "native"
)

// Protocols returns the protocols that a channel can have.
func Protocols() []Protocol {
	protocols := []Protocol{ProtocolAuto, ProtocolNative}
	for v := dialects.DOCA2_10; v <= dialects.DOCA3_2; v++ {
		protocols = append(protocols, Protocol(v.String()))
	}
	return protocols
}

// TargetProtocols returns the protocols that a channel's target can have: those of clients, but for
// ProtocolAuto.
func TargetProtocols() []Protocol { return Protocols()[1:] }

// checkTargetProtocol returns an error if the channel's clients cannot use a target of its
// protocol. In 2.10 and 3.0 the place of data in the client's memory is bound to that in the
// storage, so bounce buffers cannot replace that memory. In 2.10 both are the same, and the target
// learns the size of its storage from the initiator's memory: only initiators of 2.10 keep to that.
func (c *ChannelConfig) checkTargetProtocol() error {
	if c.TargetProtocol == ProtocolNative {
		return nil
	}
	v, err := dialects.ParseVersion(string(c.TargetProtocol))
	switch {
	case err != nil:
		return err
	case v == dialects.DOCA2_10 && c.Protocol != ProtocolAuto && c.Protocol != c.TargetProtocol:
		return status.Errorf(status.InvalidValue, "target protocol %s needs protocol %s, not %s: "+
			"the storage of such a target mirrors its initiator's memory", c.TargetProtocol,
			c.TargetProtocol, c.Protocol)
	case c.Isolation == Staged:
		return c.checkStaged()
	}
	return nil
}

// checkStaged returns an error if bounce buffers cannot stand in for the client's memory.
func (c *ChannelConfig) checkStaged() error {
	if c.TargetProtocol == ProtocolNative {
		return nil
	}
	v, err := dialects.ParseVersion(string(c.TargetProtocol))
	if err != nil || v > dialects.DOCA3_0 {
		return err
	}
	return status.Errorf(status.InvalidValue, "target protocol %s needs isolation %s: the "+
		"place of data in the client's memory tells its place in the storage",
		c.TargetProtocol, Direct)
}

// checkClient returns an error if the session's client cannot use the target because of their
// protocols: see checkTargetProtocol.
func (s *session) checkClient() error {
	if s.settings.TargetProtocol != Protocol(dialects.DOCA2_10.String()) {
		return nil
	}
	c, isDialect := s.client.(*dialectClient)
	if isDialect && c.responder.Version() == dialects.DOCA2_10 {
		return nil
	}
	return status.Errorf(status.NotSupported, "the channel's target speaks %s, so it serves "+
		"initiators of %s only: its storage mirrors the initiator's memory",
		s.settings.TargetProtocol, s.settings.TargetProtocol)
}

func (p Protocol) validate() error {
	if p == ProtocolAuto || p == ProtocolNative {
		return nil
	}
	_, err := dialects.ParseVersion(string(p))
	return err
}

// clientConversation is the relay's side of a conversation with a client: a controlmsg.Responder,
// or a dialectClient.
type clientConversation interface {
	Serve(context.Context, controlmsg.Handler) error
	Done() <-chan struct{}
	Err() error
	Close(reason error)
}

// openConversation begins the conversation with the client: in the channel's protocol or, with
// ProtocolAuto, in the one that the client's first message uses. The conversation is never nil; if
// the client does not send a message in time, err says so.
func (s *session) openConversation() (conversation clientConversation, err error) {
	transport := s.channel.relay.config.HookTransport(
		controlmsg.NewComchTransport(s.connection))
	switch protocol := s.settings.Protocol; protocol {
	case ProtocolNative:
		return s.respond(transport), nil
	case ProtocolAuto:
	default:
		v, err := dialects.ParseVersion(string(protocol))
		return newDialectClient(s, transport, v, false), err
	}
	ctx, cancel := s.stepTimeout(s.ctx)
	defer cancel()
	v, begun, err := dialects.DetectPeer(ctx, transport)
	if cause := context.Cause(s.ctx); cause != nil {
		return s.respond(transport), cause
	}
	if status.CodeOf(err) == status.TimeOut {
		return s.respond(transport), status.Errorf(status.TimeOut, "no request within %v in phase %v",
			s.settings.ControlTimeout, controlmsg.PhaseConnect)
	}
	if v != dialects.None {
		return newDialectClient(s, begun, v, true), nil
	}
	return s.respond(begun), nil
}

// respond begins a conversation in our own protocol.
func (s *session) respond(transport controlmsg.Transport) *controlmsg.Responder {
	config := s.channel.endpointConfig(s.log)
	config.OnHello = func(reply *controlmsg.HelloReply) error {
		s.longestLease = s.channel.targets.LongestLease()
		reply.LeaseMs = uint32(s.longestLease.Milliseconds())
		return nil
	}
	config.Announce = func(m *controlmsg.KeepAlive) { m.VolumeSize = s.volumeSize.Load() }
	return controlmsg.NewResponder(transport, config)
}

// endpointConfig returns what all conversations with clients in our own protocol have in common.
func (c *channel) endpointConfig(log *zap.Logger) controlmsg.EndpointConfig {
	return controlmsg.EndpointConfig{Role: controlmsg.RoleRelay,
		Timeout: c.settings.Load().ControlTimeout, Software: c.relay.config.Software, Logger: log}
}

// grow passes a new size of the volume, in bytes, on to the client. It ignores sizes that are known
// to the client, and clients that speak a dialect, which has no message for it.
func (s *session) grow(size uint64) {
	if size <= s.volumeSize.Load() {
		return
	}
	s.volumeSize.Store(size)
	if native, ok := s.client.(*controlmsg.Responder); ok {
		native.Announce()
	}
}
