// SPDX-License-Identifier: Apache-2.0

package controlmsg

import (
	"context"
	"errors"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// brokenTransport fails every send, and counts them.
type brokenTransport struct {
	Transport
	sends int
}

func (*brokenTransport) MaxMessageSize() int { return MinMessageSize }
func (*brokenTransport) RemoteName() string  { return "peer" }

func (t *brokenTransport) Send(context.Context, []byte) error {
	t.sends++
	return status.Errorf(status.TimeOut, "made up")
}

func TestNothingFollowsAMessageThatCouldNotBeSent(t *testing.T) {
	transport := &brokenTransport{}
	l := newLink(transport, EndpointConfig{Role: RoleRelay})
	for range 3 {
		if err := l.transmit(t.Context(), []byte{1}); err == nil {
			t.Error("a message could be sent")
		}
	}
	if transport.sends != 1 {
		t.Errorf("%d messages were sent, want the first only", transport.sends)
	}
}

func TestTheFirstReasonForAnEndCounts(t *testing.T) {
	l := newLink(&brokenTransport{}, EndpointConfig{Role: RoleRelay})
	first, second := errors.New("first"), errors.New("second")
	if !l.end(first, nil) || l.end(second, nil) {
		t.Error("a link ends several times")
	}
	if err := l.endError(); err != first {
		t.Errorf("the link has ended because of %q", err)
	}
}
