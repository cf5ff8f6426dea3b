package iwarp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// endpoint is a device with a listener whose clients the test plays itself.
type endpoint struct {
	*testing.T
	device   *device
	listener *listener
	config   rdma.ConnectionConfig
}

func newEndpoint(t *testing.T, options Options) *endpoint {
	t.Helper()
	p := &endpoint{T: t, device: openDevice(t, options)}
	l, err := p.device.Listen(contextFor(t), netip.AddrPortFrom(loopback, 0))
	if err != nil {
		t.Fatal(err)
	}
	p.listener = l.(*listener)
	domain, err := p.device.NewProtectionDomain()
	if err != nil {
		t.Fatal(err)
	}
	queue, err := p.device.NewCompletionQueue(0)
	if err != nil {
		t.Fatal(err)
	}
	p.config = rdma.ConnectionConfig{
		Domain: domain, Queue: queue, SendRequests: 4, ReceiveRequests: 4, InboundReads: 4, OutboundReads: 4,
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if err := queue.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// dial connects a client that has said nothing yet.
func (p *endpoint) dial() *net.TCPConn {
	p.Helper()
	conn, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(p.listener.Address()))
	if err != nil {
		p.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(testTimeout))
	p.Cleanup(func() { _ = conn.Close() })
	return conn
}

// expectClosed waits until the other side closes, and returns what it said.
func (p *endpoint) expectClosed(conn *net.TCPConn) []byte {
	p.Helper()
	b, err := io.ReadAll(conn)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		p.Fatal("the client was not cut off")
	}
	return b
}

func (p *endpoint) validRequest() []byte {
	request := newRequest(false, 4, 4, []byte("honest"))
	return request.append(nil, mpaRequestKey)
}

// expectValidClient has an honest client come up to Accept, and refuses it.
func (p *endpoint) expectValidClient() {
	p.Helper()
	conn := p.dial()
	if _, err := conn.Write(p.validRequest()); err != nil {
		p.Fatal(err)
	}
	request, err := p.listener.Accept(contextFor(p.T))
	if err != nil {
		p.Fatal(err)
	}
	if got := string(request.PrivateData()); got != "honest" {
		p.Errorf("private data %q", got)
	}
	if err := request.Reject([]byte("no")); err != nil {
		p.Fatal(err)
	}
	if reply := p.expectClosed(conn); len(reply) < mpaHeaderBytes || reply[16]&mpaReject == 0 {
		p.Errorf("reply %x", reply)
	}
}

// connect makes a connection to another party's listener.
func (p *endpoint) connect(responder *endpoint) []*connection {
	p.Helper()
	accepted := make(chan rdma.Connection, 1)
	go func() {
		defer close(accepted)
		request, err := responder.listener.Accept(contextFor(p.T))
		if err != nil {
			return
		}
		if conn, err := request.Accept(contextFor(p.T), responder.config); err == nil {
			accepted <- conn
		}
	}()
	conn, err := p.device.Connect(contextFor(p.T), responder.listener.Address(), p.config)
	if err != nil {
		p.Fatal(err)
	}
	other, ok := <-accepted
	if !ok {
		p.Fatal("not accepted")
	}
	return []*connection{conn.(*connection), other.(*connection)}
}

func (p *endpoint) closeAll(conns []*connection) {
	for _, c := range conns {
		c.Close()
		p.collectEnd()
	}
}

// collectEnd polls until a connection has ended.
func (p *endpoint) collectEnd() {
	p.Helper()
	completions := make([]rdma.Completion, 1)
	for deadline := time.Now().Add(testTimeout); p.config.Queue.Poll(completions) == 0 || completions[0].Opcode != rdma.OpDisconnected; {
		if time.Now().After(deadline) {
			p.Fatal("the connection does not end")
		}
		runtime.Gosched()
	}
}

func TestInvalidClientsAreDisconnected(t *testing.T) {
	p := newEndpoint(t, Options{})
	markers := mpaFrame{revision: 2, enhanced: true, markers: true}
	long := mpaFrame{revision: 1, privateData: make([]byte, rdma.MaxPrivateData+1)}
	rtr := mpaFrame{revision: 2, enhanced: true, peerToPeer: true, rtrFPDU: true}
	for name, bytes := range map[string][]byte{
		"HTTP":                           []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
		"a reply":                        golden(t, "mpa_rep_v2"),
		"markers":                        markers.append(nil, mpaRequestKey),
		"too much private data":          long.append(nil, mpaRequestKey),
		"only empty FPDUs to start with": rtr.append(nil, mpaRequestKey),
	} {
		conn := p.dial()
		if _, err := conn.Write(bytes); err != nil {
			t.Fatal(err)
		}
		reply := p.expectClosed(conn)
		if len(reply) > 0 && reply[16]&mpaReject == 0 {
			t.Errorf("%s: answered by %x", name, reply)
		}
	}
	p.expectValidClient()
}

func TestSilentClientsTimeOut(t *testing.T) {
	p := newEndpoint(t, Options{HandshakeTimeout: 50 * time.Millisecond})
	silent, slow := p.dial(), p.dial()
	if _, err := slow.Write(p.validRequest()[:25]); err != nil {
		t.Fatal(err)
	}
	p.expectClosed(silent)
	p.expectClosed(slow)
}

func TestSilentClientsCannotLockOutOthers(t *testing.T) {
	p := newEndpoint(t, Options{MaxPendingHandshakes: 4, HandshakeTimeout: testTimeout})
	var silent []*net.TCPConn
	for range 20 {
		silent = append(silent, p.dial())
	}
	p.expectValidClient()
	for _, conn := range silent[:16] {
		p.expectClosed(conn)
	}
}

func TestAcceptRequiresAnnouncedFirstFrame(t *testing.T) {
	for name, frame := range map[string][]byte{
		"a Send":              golden(t, "send_hello"),
		"a Write of bytes":    golden(t, "write_16"),
		"a Read of bytes":     golden(t, "rreq"),
		"no iWARP":            []byte("GET / HTTP/1.1\r\n\r\n"),
		"a frame of too much": {0xff, 0xff, 0xc1, 0x40},
	} {
		p := newEndpoint(t, Options{})
		conn := p.dial()
		if _, err := conn.Write(p.validRequest()); err != nil {
			t.Fatal(err)
		}
		request, err := p.listener.Accept(contextFor(t))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(frame); err != nil {
			t.Fatal(err)
		}
		if _, err := request.Accept(contextFor(t), p.config); err == nil {
			t.Errorf("%s: accepted", name)
		} else {
			terminateOf(t, err)
		}
		if _, err := request.Accept(contextFor(t), p.config); !errors.Is(err, status.BadState) {
			t.Errorf("%s: a second Accept returns %v", name, err)
		}
	}
}

// responder accepts one TCP connection, reads a request and hands over.
func (p *endpoint) responder(serve func(conn *net.TCPConn)) netip.AddrPort {
	p.Helper()
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(loopback, 0)))
	if err != nil {
		p.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := l.AcceptTCP()
		if err != nil {
			return
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(testTimeout))
		if _, err := io.ReadFull(conn, make([]byte, mpaHeaderBytes+enhancedBytes)); err == nil {
			serve(conn)
		}
	}()
	p.Cleanup(func() { _ = l.Close(); <-done })
	return addressOf(l.Addr())
}

var plainReply = mpaFrame{revision: 2, enhanced: true, peerToPeer: true, rtrRead: true, inboundReads: 4, outboundReads: 4}

// TestPeerThatMissesFirstFrameIsNudged plays Linux siw: what arrives
// right behind its reply goes unnoticed until more data comes.
func TestPeerThatMissesFirstFrameIsNudged(t *testing.T) {
	p := newEndpoint(t, Options{})
	nudges := make(chan []byte, 1)
	remote := p.responder(func(conn *net.TCPConn) {
		_, _ = conn.Write(plainReply.append(nil, mpaReplyKey))
		first := make([]byte, len(appendZeroRead(nil, false)))
		nudge := make([]byte, len(appendZeroWrite(nil, false)))
		_, _ = io.ReadFull(conn, first)
		_, _ = io.ReadFull(conn, nudge)
		nudges <- nudge
		request := parseReadRequest(first)
		answer := taggedHeader{op: opReadResponse, last: true, stag: request.sinkSTag}
		_, _ = conn.Write(appendTrailer(answer.append(nil, 0), false))
		_, _ = io.Copy(io.Discard, conn)
	})
	conn, err := p.device.Connect(contextFor(t), remote, p.config)
	if err != nil {
		t.Fatal(err)
	}
	if nudge := <-nudges; !bytes.Equal(nudge, appendZeroWrite(nil, false)) {
		t.Errorf("nudged by %x", nudge)
	}
	conn.Close()
	if n := p.config.Queue.Poll(make([]rdma.Completion, 4)); n != 1 {
		t.Errorf("%d completions", n)
	}
}

func TestConnectFailsOnInvalidResponder(t *testing.T) {
	spoilt := func(change func(*mpaFrame)) []byte {
		reply := plainReply
		change(&reply)
		return reply.append(nil, mpaReplyKey)
	}
	answer := func(frame []byte) []byte { return append(plainReply.append(nil, mpaReplyKey), frame...) }
	for name, c := range map[string]struct {
		reply []byte
		want  status.Code
	}{
		"garbage":                 {[]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), status.Unexpected},
		"nothing":                 {nil, status.ConnectionReset},
		"revision 1":              {spoilt(func(f *mpaFrame) { f.revision, f.enhanced = 1, false }), status.UnsupportedVersion},
		"markers":                 {spoilt(func(f *mpaFrame) { f.markers = true }), status.NotSupported},
		"too many Reads":          {spoilt(func(f *mpaFrame) { f.outboundReads = 99 }), status.Unexpected},
		"rejection":               {spoilt(func(f *mpaFrame) { f.reject = true }), status.ConnectionAborted},
		"Write instead of answer": {answer(golden(t, "rtr_write0")), status.ConnectionReset},
		"Terminate":               {answer(golden(t, "term_ddp_tagged_badstag")), status.NotPermitted},
		"closing":                 {answer(nil), status.ConnectionReset},
	} {
		p := newEndpoint(t, Options{})
		remote := p.responder(func(conn *net.TCPConn) {
			_, _ = conn.Write(c.reply)
			_ = conn.CloseWrite()
			_, _ = io.Copy(io.Discard, conn)
		})
		if _, err := p.device.Connect(contextFor(t), remote, p.config); !errors.Is(err, c.want) {
			t.Errorf("%s: Connect returns %v, want %v", name, err, c.want)
		}
	}
}

func TestConnectTimesOutOnSilentResponder(t *testing.T) {
	for name, reply := range map[string][]byte{"before the reply": nil, "behind the reply": plainReply.append(nil, mpaReplyKey)} {
		p := newEndpoint(t, Options{})
		remote := p.responder(func(conn *net.TCPConn) {
			_, _ = conn.Write(reply)
			_, _ = io.Copy(io.Discard, conn)
		})
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		if _, err := p.device.Connect(ctx, remote, p.config); !errors.Is(err, status.TimeOut) {
			t.Errorf("%s: Connect returns %v", name, err)
		}
		cancel()
	}
}

func TestRegisterRejectsOpaqueMemory(t *testing.T) {
	p := newEndpoint(t, Options{})
	region := memory.NewOpaque("a device's", 0, 4096, nil)
	if _, err := p.config.Domain.Register(region, allRights); !errors.Is(err, status.NotSupported) {
		t.Errorf("Register returns %v", err)
	}
}

func TestEitherSideCanEnableCRC(t *testing.T) {
	for _, c := range []struct{ initiator, responder bool }{{false, false}, {true, false}, {false, true}, {true, true}} {
		x, y := newEndpoint(t, Options{CRC: c.initiator}), newEndpoint(t, Options{CRC: c.responder})
		conns := x.connect(y)
		for _, conn := range conns {
			if conn.useCRC != (c.initiator || c.responder) {
				t.Errorf("initiator wants %t, responder wants %t, used %t", c.initiator, c.responder, conn.useCRC)
			}
		}
		x.closeAll(conns[:1])
		y.closeAll(conns[1:])
	}
}

func TestAbortFailsBothSides(t *testing.T) {
	x, y := newEndpoint(t, Options{}), newEndpoint(t, Options{})
	conns := x.connect(y)
	conns[0].Abort()
	x.collectEnd()
	y.collectEnd()
	if conns[0].Err() == nil || conns[1].Err() == nil {
		t.Errorf("Err is %v where it was aborted and %v at the peer", conns[0].Err(), conns[1].Err())
	}
}

// TestResponderWaitsForFirstFrame plays initiators that announce
// no ready-to-receive frame, as Linux siw does, of both MPA revisions.
func TestResponderWaitsForFirstFrame(t *testing.T) {
	for name, c := range map[string]struct {
		request    mpaFrame
		replyBytes int
	}{
		"revision 2": {mpaFrame{revision: 2, enhanced: true, inboundReads: 2, outboundReads: 2}, mpaHeaderBytes + enhancedBytes},
		"revision 1": {mpaFrame{revision: 1}, mpaHeaderBytes},
	} {
		t.Run(name, func(t *testing.T) {
			p := newEndpoint(t, Options{})
			client := p.dial()
			if _, err := client.Write(c.request.append(nil, mpaRequestKey)); err != nil {
				t.Fatal(err)
			}
			request, err := p.listener.Accept(contextFor(t))
			if err != nil {
				t.Fatal(err)
			}
			handle, err := request.Accept(contextFor(t), p.config)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(client, make([]byte, c.replyBytes)); err != nil {
				t.Fatal(err)
			}
			checkSilence(t, p, handle.(*connection), client)
			p.closeAll([]*connection{handle.(*connection)})
		})
	}
}

func checkSilence(t *testing.T, p *endpoint, conn *connection, client io.ReadWriter) {
	t.Helper()
	if err := conn.PostSend([]rdma.SendRequest{{Opcode: rdma.OpSend}}); err != nil {
		t.Fatal(err)
	}
	conn.Flush()
	p.config.Queue.Poll(nil)
	if conn.sends.next != 0 {
		t.Fatal("the message was sent before the initiator's first frame")
	}
	if _, err := client.Write(appendZeroWrite(nil, false)); err != nil {
		t.Fatal(err)
	}
	for conn.sends.sent == 0 {
		p.config.Queue.Poll(nil)
	}
	frame := make([]byte, untaggedBytes+crcBytes)
	if _, err := io.ReadFull(client, frame); err != nil {
		t.Fatal(err)
	}
	p.config.Queue.Poll(make([]rdma.Completion, 1))
	if got, v := parsePrefix(frame); v != nil || got.op != opSend {
		t.Errorf("the responder sends %x", frame)
	}
}
