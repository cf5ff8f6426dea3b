package rdmatest

import (
	"bytes"
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
}

func noDevice(b *bench) {
	// TEST-NET-3 (RFC 5737) is nobody's.
	d, err := b.config.Provider.Open(netip.MustParseAddr("203.0.113.77"))
	if !errors.Is(err, status.NotFound) {
		b.Fatalf("opened %v, error %v", d, err)
	}
}

func capabilities(b *bench) {
	c := b.device.Capabilities()
	if c.Transport == "" || c.MaxInboundReads < 1 || c.MaxOutboundReads < 1 || c.MaxSendRequests < requests ||
		c.MaxReceiveRequests < requests || c.MaxSegments < 1 || c.MaxMessageSize < 1<<20 {
		b.Fatalf("unusable capabilities: %+v", c)
	}
}

func privateData(b *bench) {
	for _, length := range []int{0, 1, rdma.MaxPrivateData} {
		x, y := b.end(), b.peer()
		x.config.PrivateData = bytes.Repeat([]byte{'x'}, length)
		y.config.PrivateData = bytes.Repeat([]byte{'y'}, length)
		b.connect(x, y)
		if got := b.unpadded(x.conn.Parameters().PrivateData); !bytes.Equal(got, y.config.PrivateData) {
			b.Errorf("initiator got %q, responder sent %q", got, y.config.PrivateData)
		}
		if got := b.unpadded(y.conn.Parameters().PrivateData); !bytes.Equal(got, x.config.PrivateData) {
			b.Errorf("responder got %q, initiator sent %q", got, x.config.PrivateData)
		}
	}
}

// unpadded is private data without the zeros that some transports append.
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
		b.Errorf("initiator has %v and %v, responder %v and %v", p.Local, p.Remote, q.Local, q.Remote)
	}
}

func sourceAddress(b *bench) {
	x, y := b.end(), b.peer()
	x.config.Source = b.config.Address
	b.connect(x, y)
	if got := y.conn.Parameters().Remote.Addr(); got != b.config.Address {
		b.Errorf("connection comes from %v, not %v", got, b.config.Address)
	}
}

func readDepths(b *bench) {
	for _, c := range []struct{ inbound, outbound, want int }{{1, 8, 1}, {8, 1, 1}, {3, 3, 3}, {2, 0, 0}} {
		x, y := b.end(), b.peer()
		x.config.OutboundReads, y.config.InboundReads = c.outbound, c.inbound
		y.config.OutboundReads, x.config.InboundReads = c.outbound, c.inbound
		b.connect(x, y)
		for _, e := range []*end{x, y} {
			p := e.conn.Parameters()
			if p.OutboundReads != c.want || p.InboundReads > c.inbound || p.InboundReads < c.want {
				b.Errorf("offered IRD %d and ORD %d: agreed on IRD %d and ORD %d", c.inbound, c.outbound, p.InboundReads, p.OutboundReads)
			}
		}
	}
}

func inUse(b *bench) {
	x, _ := b.pair()
	if err := x.queue.Close(); !errors.Is(err, status.InUse) {
		b.Errorf("a queue with a connection closes with %v", err)
	}
	if err := x.domain.Close(); !errors.Is(err, status.InUse) {
		b.Errorf("a domain with a connection and memory closes with %v", err)
	}
}

// manyConnections goes beyond any batch of events, on one queue.
func manyConnections(b *bench) {
	const count = 150
	shared := b.endOf(b.device, helloBytes)
	var peers []*end
	for range count {
		peer := b.endOf(b.responder, helloBytes)
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
