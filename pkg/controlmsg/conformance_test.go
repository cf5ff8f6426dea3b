// SPDX-License-Identifier: Apache-2.0

package controlmsg_test

import (
	"testing"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/controlmsgtest"
)

func TestTransportsConform(t *testing.T) {
	t.Run("pipe", func(t *testing.T) {
		controlmsgtest.RunTransport(t, func(testing.TB) (near, far controlmsg.Transport) {
			return controlmsgtest.NewPipe(controlmsg.DefaultMaxMessageSize)
		})
	})
	t.Run("Comch", func(t *testing.T) {
		controlmsgtest.RunTransport(t, func(testing.TB) (near, far controlmsg.Transport) {
			initiator, relay := newComchPair()
			return controlmsg.NewComchTransport(initiator), controlmsg.NewComchTransport(relay)
		})
	})
	t.Run("TCP", func(t *testing.T) {
		controlmsgtest.RunTransport(t, func(t testing.TB) (near, far controlmsg.Transport) {
			a, b := connect(t)
			return controlmsg.NewTCPTransport(a, controlmsg.TCPConfig{}),
				controlmsg.NewTCPTransport(b, controlmsg.TCPConfig{})
		})
	})
}
