// SPDX-License-Identifier: Apache-2.0

package relay

import (
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

func (p Protocol) validate() error {
	if p == ProtocolAuto || p == ProtocolNative {
		return nil
	}
	_, err := dialects.ParseVersion(string(p))
	return err
}
