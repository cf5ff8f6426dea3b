// SPDX-License-Identifier: Apache-2.0

package rdmatest

import (
	"bytes"
	"context"
	"errors"
	"net/netip"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

var setUpTests = []conformanceTest{
	{"AnAddressOfAnotherMachineHasNoDevice", "", noDevice},
	{"CapabilitiesAreUsable", "", capabilities},
	{"PrivateDataReachesBothSides", "", privateData},
	{"BothSidesKnowTheAddresses", "", addresses},
	{"TheSourceAddressIsUsed", "", sourceAddress},
	{"ReadDepthsFitBothSides", "", readDepths},
	{"WhatIsInUseCannotBeClosed", "", inUse},
	{"ManyConnectionsShareOneQueue", "", manyConnections},
	{"ADeviceReachesItself", "", loopback},
}

func noDevice(b *bench) {
	// No device has an address of TEST-NET-3 (RFC 5737).
	d, err := b.config.Provider.Open(netip.MustParseAddr("203.0.113.77"))
	if !errors.Is(err, status.NotFound) {
		b.Fatalf("opened %v, error %v", d, err)
	}
}

func capabilities(b *bench) {
	c := b.device.Capabilities()
	if c.Transport == "" || c.MaxInboundReads < 1 || c.MaxOutboundReads < 1 ||
		c.MaxSendRequests < requests ||
		c.MaxReceiveRequests < requests || c.MaxSegments < 1 || c.MaxMessageSize < 1<<20 {
		b.Fatalf("unusable capabilities: %+v", c)
	}
}

func privateData(b *bench) {
	for _, length := range []int{0, 1, rdma.MaxPrivateData} {
		x, y := b.newInitiator(), b.newResponder()
		x.config.PrivateData = bytes.Repeat([]byte{'x'}, length)
		y.config.PrivateData = bytes.Repeat([]byte{'y'}, length)
		b.connect(x, y)
		if got := b.unpadded(x.conn.Parameters().PrivateData); !bytes.Equal(got,
			y.config.PrivateData) {
			b.Errorf("initiator got %q, responder sent %q", got, y.config.PrivateData)
		}
		if got := b.unpadded(y.conn.Parameters().PrivateData); !bytes.Equal(got,
			x.config.PrivateData) {
			b.Errorf("responder got %q, initiator sent %q", got, x.config.PrivateData)
		}
	}
}

// unpadded removes the zeros that some transports append to private data.
func (b *bench) unpadded(privateData []byte) []byte {
	if len(privateData) > rdma.MaxPrivateData {
		b.Errorf("%d bytes of private data", len(privateData))
	}
	if b.has(ExactPrivateData) {
		return privateData
	}
	return bytes.TrimRight(privateData, "\x00")
}

func addresses(b *bench) {
	x, y := b.pair()
	p, q := x.conn.Parameters(), y.conn.Parameters()
	if p.Local.Addr() != q.Remote.Addr() || p.Remote != q.Local {
		b.Errorf("initiator has %v and %v, responder %v and %v", p.Local, p.Remote, q.Local,
			q.Remote)
	}
}

func sourceAddress(b *bench) {
	x, y := b.newInitiator(), b.newResponder()
	x.config.Source = b.config.Address
	b.connect(x, y)
	if got := y.conn.Parameters().Remote.Addr(); got != b.config.Address {
		b.Errorf("connection comes from %v, want %v", got, b.config.Address)
	}
}

func readDepths(b *bench) {
	for _, c := range []struct{ inbound, outbound, want int }{{1, 8, 1}, {8, 1, 1}, {3, 3, 3},
		{2, 0, 0}} {
		x, y := b.newInitiator(), b.newResponder()
		x.config.OutboundReads, y.config.InboundReads = c.outbound, c.inbound
		y.config.OutboundReads, x.config.InboundReads = c.outbound, c.inbound
		b.connect(x, y)
		for _, e := range []*endpoint{x, y} {
			p := e.conn.Parameters()
			if p.OutboundReads != c.want || p.InboundReads > c.inbound || p.InboundReads < c.want {
				b.Errorf("offered IRD %d and ORD %d: agreed on IRD %d and ORD %d",
					c.inbound, c.outbound, p.InboundReads, p.OutboundReads)
			}
		}
	}
}

func inUse(b *bench) {
	x, _ := b.pair()
	if err := x.queue.Close(); !errors.Is(err, status.InUse) {
		b.Errorf("close a queue with a connection: %v", err)
	}
	if err := x.domain.Close(); !errors.Is(err, status.InUse) {
		b.Errorf("close a domain with a connection and memory: %v", err)
	}
}

// manyConnections attaches more connections to one queue than any batch of events holds.
func manyConnections(b *bench) {
	const count = 150
	shared := b.newEndpoint(b.device, helloBytes)
	var peers []*endpoint
	for range count {
		peer := b.newEndpoint(b.responder, helloBytes)
		peer.config.Receives = []rdma.ReceiveRequest{peer.receiveRequest(1, 0, helloBytes)}
		b.connect(shared, peer)
		peers = append(peers, peer)
		shared.send(2, 0, helloBytes)
	}
	shared.await(count)
	for _, peer := range peers {
		peer.awaitOne(rdma.OpReceive, 1)
		if !bytes.Equal(peer.mem.bytes[:helloBytes], shared.mem.bytes[:helloBytes]) {
			b.Fatal("wrong message")
		}
	}
}

func loopback(b *bench) {
	own, other := b.newEndpoint(b.device, helloBytes), b.newEndpoint(b.device, helloBytes)
	connected, err := rdma.TryLoopback(b.context(), b.device, b.config.Address, own.domain,
		own.mem.MemoryRegion)
	if err != nil || !connected {
		b.Errorf("own memory: connected %v, error %v", connected, err)
	}
	// The key means nothing in this domain.
	connected, err = rdma.TryLoopback(b.context(), b.device, b.config.Address, own.domain,
		other.mem.MemoryRegion)
	if err == nil || !connected {
		b.Errorf("memory of another domain: connected %v, error %v", connected, err)
	}
}

var rejectionTests = []conformanceTest{
	{"IncompleteConfigurationsAreRejected", "", incompleteConfigs},
	{"TooMuchPrivateDataIsRejected", "", tooMuchPrivateData},
	{"ARejectionCarriesItsReason", "", rejection},
	{"ConnectingWithoutAListenerFails", "", noListener},
	{"ConnectEndsWithItsContext", "", connectDeadline},
	{"AcceptEndsWithItsContext", "", acceptDeadline},
	{"ClosingAListenerEndsItsAccept", "", closedListener},
	{"ClosingAListenerRejectsWaitingRequests", "", closedWithRequests},
}

func incompleteConfigs(b *bench) {
	remote := b.listen().Address()
	for name, spoil := range map[string]func(*rdma.ConnectionConfig){
		"no domain":           func(c *rdma.ConnectionConfig) { c.Domain = nil },
		"no queue":            func(c *rdma.ConnectionConfig) { c.Queue = nil },
		"no send requests":    func(c *rdma.ConnectionConfig) { c.SendRequests = 0 },
		"no receive requests": func(c *rdma.ConnectionConfig) { c.ReceiveRequests = 0 },
		"negative read depth": func(c *rdma.ConnectionConfig) { c.InboundReads = -1 },
		"too many receives": func(c *rdma.ConnectionConfig) {
			c.Receives = make([]rdma.ReceiveRequest, c.ReceiveRequests+1)
		},
	} {
		e := b.newInitiator()
		spoil(&e.config)
		if _, err := b.device.Connect(b.context(), remote, e.config); err == nil {
			b.Errorf("%s: accepted", name)
		}
	}
}

func tooMuchPrivateData(b *bench) {
	listener := b.listen()
	e := b.newInitiator()
	e.config.PrivateData = make([]byte, rdma.MaxPrivateData+1)
	if _, err := b.device.Connect(b.context(), listener.Address(), e.config); err == nil {
		b.Error("Connect accepts more than MaxPrivateData bytes")
	}
}

// tryConnect connects in the background and delivers the error.
func (b *bench) tryConnect(ctx context.Context, remote netip.AddrPort) <-chan error {
	e := b.newInitiator()
	result := make(chan error, 1)
	go func() {
		_, err := b.device.Connect(ctx, remote, e.config)
		result <- err
	}()
	return result
}

func rejection(b *bench) {
	listener := b.listen()
	result := b.tryConnect(b.context(), listener.Address())
	request, err := listener.Accept(b.context())
	if err != nil {
		b.Fatal(err)
	}
	reason := bytes.Repeat([]byte{'r'}, rdma.MaxPrivateData)
	if err := request.Reject(append(reason, 'r')); err == nil {
		b.Error("Reject accepts more than MaxPrivateData bytes")
	}
	if err := request.Reject(reason); err != nil {
		b.Fatal(err)
	}
	var rejected *rdma.RejectedError
	if err := <-result; !errors.As(err, &rejected) || !bytes.Equal(rejected.Reason, reason) {
		b.Errorf("Connect returns %v", err)
	}
}

func noListener(b *bench) {
	listener := b.listen()
	remote := listener.Address()
	if err := listener.Close(); err != nil {
		b.Fatal(err)
	}
	if err := <-b.tryConnect(b.context(), remote); err == nil {
		b.Error("Connect succeeds without a listener")
	}
}

func connectDeadline(b *bench) {
	listener := b.listen()
	ctx, cancel := context.WithCancel(b.context())
	result := b.tryConnect(ctx, listener.Address())
	// The request has arrived; the caller cancels before it is accepted.
	request, err := listener.Accept(b.context())
	if err != nil {
		b.Fatal(err)
	}
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		b.Errorf("Connect returns %v", err)
	}
	_ = request.Reject(nil) // the caller is gone
}

func acceptDeadline(b *bench) {
	listener := b.listen()
	ctx, cancel := context.WithCancel(b.context())
	cancel()
	if _, err := listener.Accept(ctx); !errors.Is(err, context.Canceled) {
		b.Errorf("Accept returns %v", err)
	}
}

func closedListener(b *bench) {
	listener := b.listen()
	result := make(chan error, 1)
	go func() {
		_, err := listener.Accept(b.context())
		result <- err
	}()
	if err := listener.Close(); err != nil {
		b.Fatal(err)
	}
	if err := <-result; !errors.Is(err, status.Shutdown) {
		b.Errorf("Accept returns %v", err)
	}
	if _, err := listener.Accept(b.context()); !errors.Is(err, status.Shutdown) {
		b.Errorf("a later Accept returns %v", err)
	}
}

func closedWithRequests(b *bench) {
	listener := b.listen()
	result := b.tryConnect(b.context(), listener.Address())
	if err := listener.Close(); err != nil {
		b.Fatal(err)
	}
	if err := <-result; err == nil {
		b.Error("a request that was not accepted succeeds")
	}
}
