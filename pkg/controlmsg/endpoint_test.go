// SPDX-License-Identifier: Apache-2.0

package controlmsg_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/controlmsg/controlmsgtest"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/status"
)

var (
	asRelay     = controlmsg.EndpointConfig{Role: controlmsg.RoleRelay}
	asTarget    = controlmsg.EndpointConfig{Role: controlmsg.RoleTarget}
	asInitiator = controlmsg.EndpointConfig{Role: controlmsg.RoleInitiator}

	relaySource   = netip.MustParseAddr("192.0.2.1")
	targetAddress = netip.MustParseAddrPort("192.0.2.2:20049")
)

func acceptAll() controlmsgtest.Handler {
	return controlmsgtest.Accept(controlmsgtest.Volume(), targetAddress)
}

func configuration(queues uint32) *controlmsg.ConfigureDataPath {
	return &controlmsg.ConfigureDataPath{
		QueueCount: queues, Depth: 8, BufferSize: 4096,
		Export: controlmsg.Export{Access: memory.PCIRead, Length: 4096,
			Descriptor: []byte("memory")},
	}
}

// newRequester returns a requester that has exchanged hellos with its peer.
func newRequester(t *testing.T, config controlmsg.EndpointConfig,
	transport controlmsg.Transport) *controlmsg.Requester {
	t.Helper()
	r := controlmsg.NewRequester(transport, config)
	t.Cleanup(func() { r.Close(nil) })
	if _, err := r.Greet(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

// newRequesterOfRaw returns a requester whose raw peer has answered hello with reply.
func newRequesterOfRaw(t *testing.T, config controlmsg.EndpointConfig,
	reply *controlmsg.HelloReply) (*controlmsg.Requester, *controlmsgtest.Raw) {
	t.Helper()
	raw, transport := controlmsgtest.NewRaw(t)
	go func() { raw.Send(raw.Receive().Correlation, reply) }()
	return newRequester(t, config, transport), raw
}

func targetHello() *controlmsg.HelloReply {
	return &controlmsg.HelloReply{Version: 1, MaxMessageSize: controlmsg.MinMessageSize}
}

func mustCall(t *testing.T, r *controlmsg.Requester, requests ...controlmsg.Message) {
	t.Helper()
	for _, request := range requests {
		if _, err := r.Call(t.Context(), request); err != nil {
			t.Fatal(err)
		}
	}
}

// session returns all requests of a relay to a target after hello.
func session(queues uint32) []controlmsg.Message {
	requests := []controlmsg.Message{&controlmsg.OpenVolume{Volume: "test"}, configuration(queues)}
	for queue := range queues {
		for _, role := range []iomsg.ConnectionRole{iomsg.ControlConnection, iomsg.DataConnection} {
			requests = append(requests, &controlmsg.CreateRDMAConnection{Queue: queue, Role: role,
				Source: relaySource})
		}
	}
	return append(requests, &controlmsg.StartDataPathConnections{}, &controlmsg.StartStorage{},
		&controlmsg.Stop{}, &controlmsg.DestroyObjects{})
}

func checkError(t *testing.T, what string, err error, code status.Code, text string) {
	t.Helper()
	if err == nil || !errors.Is(err, code) || status.CodeOf(err) != code ||
		!strings.Contains(err.Error(), text) {
		t.Errorf("%s: %v; want %q and the code %v", what, err, text, code)
	}
}

// checkFarewell reads until the farewell, and checks it.
func checkFarewell(t *testing.T, raw *controlmsgtest.Raw, code status.Code, text string) {
	t.Helper()
	for {
		e := raw.Receive()
		farewell, ok := e.Message.(*controlmsg.Error)
		if !ok {
			continue
		}
		if e.Correlation != 0 || farewell.Code != code || !strings.Contains(farewell.Text, text) {
			t.Errorf("the farewell is %v (correlation %d), want %q and the code %v", farewell,
				e.Correlation, text, code)
		}
		return
	}
}
