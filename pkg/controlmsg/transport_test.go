// SPDX-License-Identifier: Apache-2.0

package controlmsg_test

import (
	"context"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/controlmsgtest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// comchConnection is the part of a Comch connection that carries control messages. The embedded
// interface is nil, so that any other use panics.
type comchConnection struct {
	comch.Connection
	messages controlmsg.Transport
	inUse    bool
	aborted  chan struct{}
}

func newComchPair() (initiator, relay *comchConnection) {
	near, far := controlmsgtest.NewPipe(4080)
	return &comchConnection{messages: near, aborted: make(chan struct{}, 2)},
		&comchConnection{messages: far, aborted: make(chan struct{}, 2)}
}

func (c *comchConnection) Peer() comch.Peer { return comch.Peer{Known: true, PID: 42, UID: 1000} }

func (c *comchConnection) MaxMessageSize() int { return c.messages.MaxMessageSize() }

func (c *comchConnection) Send(ctx context.Context, message []byte) error {
	return c.messages.Send(ctx, message)
}

func (c *comchConnection) Receive(ctx context.Context) ([]byte, error) {
	return c.messages.Receive(ctx)
}

func (c *comchConnection) Close() error {
	if c.inUse {
		return status.InUse
	}
	return c.messages.Close()
}

func (c *comchConnection) Abort() {
	c.messages.Abort()
	c.aborted <- struct{}{}
}

func TestASessionRunsOverComch(t *testing.T) {
	initiator, relay := newComchPair()
	controlmsgtest.ServeOn(t, controlmsg.NewComchTransport(relay), asRelay, acceptAll())
	r := newRequester(t, asInitiator, controlmsg.NewComchTransport(initiator))
	mustCall(t, r, &controlmsg.OpenVolume{}, configuration(2),
		&controlmsg.StartDataPathConnections{ConsumerIDs: []uint32{1, 2}},
		&controlmsg.StartStorage{}, &controlmsg.Stop{}, &controlmsg.DestroyObjects{})
}

func TestAComchConnectionWithOpenConsumersIsAborted(t *testing.T) {
	initiator, relay := newComchPair()
	initiator.inUse = true
	s := controlmsgtest.ServeOn(t, controlmsg.NewComchTransport(relay), asRelay, acceptAll())
	r := newRequester(t, asInitiator, controlmsg.NewComchTransport(initiator))
	mustCall(t, r, &controlmsg.OpenVolume{}, configuration(1))
	r.Close(status.Errorf(status.ConnectionAborted, "interrupted"))
	<-initiator.aborted
	<-s.Done()
	checkError(t, "the relay's Err", s.Err(), status.ConnectionAborted,
		"step configure_data_path: interrupted")
}

func TestALostComchConnectionIsDetected(t *testing.T) {
	initiator, relay := newComchPair()
	s := controlmsgtest.ServeOn(t, controlmsg.NewComchTransport(relay), asRelay, acceptAll())
	r := newRequester(t, asInitiator, controlmsg.NewComchTransport(initiator))
	mustCall(t, r, &controlmsg.OpenVolume{}, configuration(1))
	initiator.Abort()
	<-s.Done()
	checkError(t, "Err", s.Err(), status.ConnectionReset,
		"lost the connection to process 42 of user 1000")
}
