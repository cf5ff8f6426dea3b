// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package doca

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var _ comch.Prober = (*connection)(nil)

// A device may report the sends of a connection after the connection has ended, when another one
// has its handle.
func TestALateSendOfAFormerConnectionIsNoneOfItsSuccessor(t *testing.T) {
	e := &endpoint{connections: make(map[doca.Connection]*connection)}
	var handle doca.Connection
	former := newConnection(e, handle)
	successor := newConnection(e, handle)
	e.connections[handle] = successor
	successor.sends <- struct{}{} // a message is in flight
	sent := doca.ControlEvent{Kind: doca.MessageSent, Connection: handle,
		UserData: former.number, Err: status.IOFailed}
	e.handle(sent)
	if len(successor.sends) != 1 || successor.Err() != nil {
		t.Errorf("%d messages are in flight, and the connection has ended with %v",
			len(successor.sends), successor.Err())
	}
	sent.UserData, sent.Err = successor.number, nil
	e.handle(sent)
	if len(successor.sends) != 0 {
		t.Error("the successor's message counts as in flight although it has been sent")
	}
}
