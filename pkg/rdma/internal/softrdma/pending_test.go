// SPDX-License-Identifier: Apache-2.0

package softrdma

import (
	"net"
	"net/netip"
	"testing"
)

// fakeClient is a client that has said nothing.
type fakeClient struct {
	from   netip.AddrPort
	closed bool
}

func (c *fakeClient) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.from) }

func (c *fakeClient) Close() error {
	c.closed = true
	return nil
}

// A source that connects without end makes its own clients give way, also if another's is the
// oldest: a handshake of TLS takes round trips.
func TestAFloodEvictsNobodyElse(t *testing.T) {
	silent := silentClients[*fakeClient]{limit: 8}
	connect := func(address string) *fakeClient {
		c := &fakeClient{from: netip.MustParseAddrPort(address)}
		silent.add(c)
		return c
	}
	honest := []*fakeClient{connect("192.0.2.1:1"), connect("[2001:db8::1]:1")}
	var flood []*fakeClient
	for range 100 {
		flood = append(flood, connect("[2001:db8:0:1::5]:2"), connect("[2001:db8:0:1::6]:2"))
	}
	honest = append(honest, connect("192.0.2.1:2"))
	for i, c := range honest {
		if c.closed || !silent.remove(c) {
			t.Errorf("honest client %d had to give way", i)
		}
	}
	open := 0
	for i, c := range flood {
		if !c.closed {
			open++
		} else if silent.remove(c) {
			t.Errorf("client %d of the flood is closed, and still there", i)
		}
	}
	if open != silent.limit-len(honest) || flood[len(flood)-1].closed {
		t.Errorf("%d clients of the flood are open, the latest closed: %v", open,
			flood[len(flood)-1].closed)
	}
}
