// SPDX-License-Identifier: Apache-2.0

package resources

import (
	"fmt"
	"net"
	"path/filepath"
	"time"

	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
)

// doors returns where the daemons listen: networks and addresses.
func (p *peer) doors() [][2]string {
	channel := func(name string) string {
		return filepath.Join(p.directory, "comch", emulated.DefaultRepresentor,
			emulated.DefaultDevice, name)
	}
	return [][2]string{
		{"tcp", p.targetAddress.String()},
		{"tcp", p.targetRDMA.String()},
		{"unixpacket", fmt.Sprintf("@zc-relay/rdma/%d", p.targetRDMA.Port())},
		{"tcp", p.relay.metrics}, {"tcp", p.target.metrics},
		{"unix", p.relay.admin}, {"unix", p.target.admin},
		{"unixpacket", channel("disk")}, {"unixpacket", channel("fake")},
	}
}

// beginnings are what a silent connection may have sent: the beginning of a message of the control
// protocol, of an RDMA connection request, of a request over HTTP or TLS, and of a Comch frame.
var beginnings = []string{"", "", "\x00\x00", "\x00\x00\x00\x40", "\x00\x00\x00\x40\x08\x01",
	"MPA ID Req Frame", "MPA ID Req Frame\x40\x01\x00\x14zcr1", "GET /metrics HTTP/1.1\r\n",
	"\x16\x03\x01\x02", "\x01\x00\x00\x00\x10\x00\x00\x00zccm"}

// staySilent makes a few connections that send nothing, or the beginning of something. They end at
// once, or when the other peers are done.
func (p *peer) staySilent() {
	p.sessions(func() {
		door, end := pick(p.random, p.doors()...), p.random.IntN(4)
		beginning := pick(p.random, beginnings...)
		dialer := net.Dialer{Timeout: callTimeout}
		connection, err := dialer.DialContext(p.ctx, door[0], door[1])
		p.totals.connections.Add(1)
		if err != nil {
			return
		}
		defer func() { _ = connection.Close() }()
		if beginning != "" {
			_ = connection.SetDeadline(time.Now().Add(callTimeout))
			_, _ = connection.Write([]byte(beginning))
		}
		if end == 0 {
			return
		}
		tcp, isTCP := connection.(*net.TCPConn)
		if isTCP && end == 1 {
			_ = tcp.CloseWrite()
		}
		<-p.others
		if isTCP && end == 2 {
			_ = tcp.SetLinger(0)
		}
	})
}
