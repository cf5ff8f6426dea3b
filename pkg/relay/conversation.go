// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/dialects"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// checkClient returns an error if the session's client cannot use the target because of their
// protocols: see checkTargetProtocol.
func (s *session) checkClient() error {
	if s.settings.TargetProtocol != Protocol(dialects.DOCA2_10.String()) {
		return nil
	}
	c, isDialect := s.client.(*dialectClient)
	if isDialect && c.Version() == dialects.DOCA2_10 {
		return nil
	}
	return status.Errorf(status.NotSupported, "the channel's target speaks %s, so it serves "+
		"initiators of %s only: its storage mirrors the initiator's memory",
		s.settings.TargetProtocol, s.settings.TargetProtocol)
}

// openConversation begins the conversation with the client: in the channel's protocol or, with
// ProtocolAuto, in the one that the client's first message uses. It returns an endpoint in
// any case; if the client does not send a message in time, err says so.
func (s *session) openConversation() (client controlmsg.Server, err error) {
	transport := s.channel.relay.config.HookTransport(
		controlmsg.NewComchTransport(s.connection))
	switch protocol := s.settings.Protocol; protocol {
	case ProtocolNative:
		return s.respond(transport), nil
	case ProtocolAuto:
	default:
		v, err := dialects.ParseVersion(string(protocol))
		return s.respondInDialect(transport, v, false), err
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.settings.ControlTimeout)
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
		return s.respondInDialect(begun, v, true), nil
	}
	return s.respond(begun), nil
}

// respondInDialect begins a conversation with a DOCA storage application.
func (s *session) respondInDialect(
	transport controlmsg.Transport, v dialects.Version, isGuessed bool,
) *dialectClient {
	return newDialectClient(dialectClientConfig{session: s, connection: s.connection,
		transport: transport, timeout: s.settings.ControlTimeout, log: s.log}, v, isGuessed)
}

// translate lets a translator change the client's IO messages.
func (s *session) translate(by datapath.Translator) { s.translator = by }

// respond begins a conversation in our own protocol.
func (s *session) respond(transport controlmsg.Transport) *controlmsg.Responder {
	config := s.channel.relay.endpointConfig(s.settings.ControlTimeout, s.log)
	config.OnHello = func(_ *controlmsg.Hello, reply *controlmsg.HelloReply) error {
		s.longestLease = s.channel.targets.LongestLease()
		reply.LeaseMs = uint32(s.longestLease.Milliseconds())
		return nil
	}
	config.Announce = func(m *controlmsg.KeepAlive) { m.VolumeSize = s.volumeSize.Load() }
	return controlmsg.NewResponder(transport, config)
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
