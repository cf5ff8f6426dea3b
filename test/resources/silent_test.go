package resources

import (
	"net"
	"path/filepath"
	"time"

	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
)

// endpoints are where a daemon listens, by network.
func (p *peer) doors() [][2]string {
	channel := func(name string) string {
		return filepath.Join(p.directory, "comch", emulated.DefaultRepresentor,
			emulated.DefaultDevice, name)
	}
	return [][2]string{
		{"tcp", p.targetAddress.String()},
		{"tcp", p.targetRDMA.String()},
		{"tcp", p.relay.metrics}, {"tcp", p.target.metrics},
		{"unix", p.relay.admin}, {"unix", p.target.admin},
		{"unixpacket", channel("disk")}, {"unixpacket", channel("fake")},
	}
}

// staySilent connects to a daemon, sends nothing or the beginning of something, and stays until the
// other peers are done, or until the daemon ends the connection.
func (p *peer) staySilent() {
	for range 1 + p.random.IntN(4) {
		door := pick(p.random, p.doors()...)
		dialer := net.Dialer{Timeout: callTimeout}
		connection, err := dialer.DialContext(p.ctx, door[0], door[1])
		p.totals.connections.Add(1)
		if err != nil {
			continue
		}
		beginning := pick(p.random, "", "", "\x00\x00", "\x00\x00\x00\x40", "\x00\x00\x00\x40\x08\x01",
			"MPA ID Req Frame", "MPA ID Req Frame\x40\x01\x00\x14zcr1", "GET /metrics HTTP/1.1\r\n",
			"\x16\x03\x01\x02", "\x01\x00\x00\x00\x10\x00\x00\x00zccm")
		_ = connection.SetDeadline(time.Now().Add(callTimeout))
		if beginning != "" {
			_, _ = connection.Write([]byte(beginning))
		}
		switch end := p.random.IntN(4); {
		case end == 0: // at once
		case end == 1 && door[0] == "tcp":
			_ = connection.(*net.TCPConn).CloseWrite()
			<-p.others
		case end == 2 && door[0] == "tcp":
			<-p.others
			_ = connection.(*net.TCPConn).SetLinger(0)
		default:
			<-p.others
		}
		_ = connection.Close()
	}
}
