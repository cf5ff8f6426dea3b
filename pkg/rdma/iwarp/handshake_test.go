// SPDX-License-Identifier: Apache-2.0

package iwarp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// endpoint is a device with a listener. The test plays the clients.
type endpoint struct {
	*testing.T
	device   *device
	listener rdma.Listener
	config   rdma.ConnectionConfig
}

func newEndpoint(t *testing.T, options Options) *endpoint {
	t.Helper()
	return newEndpointOf(t, options, (*device).Listen)
}

// newEndpointOf is newEndpoint with a listener of another kind.
func newEndpointOf(
	t *testing.T, options Options,
	listen func(*device, context.Context, netip.AddrPort) (rdma.Listener, error),
) *endpoint {
	t.Helper()
	e := &endpoint{T: t, device: openDevice(t, options)}
	l, err := listen(e.device, contextFor(t), netip.AddrPortFrom(loopback, 0))
	if err != nil {
		t.Fatal(err)
	}
	e.listener = l
	domain, err := e.device.NewProtectionDomain()
	if err != nil {
		t.Fatal(err)
	}
	queue, err := e.device.NewCompletionQueue(0)
	if err != nil {
		t.Fatal(err)
	}
	e.config = rdma.ConnectionConfig{
		Domain: domain, Queue: queue,
		SendRequests: 4, ReceiveRequests: 4, InboundReads: 4, OutboundReads: 4,
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if err := queue.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// dial connects a client that sends nothing yet.
func (e *endpoint) dial() *net.TCPConn {
	e.Helper()
	conn, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(e.listener.Address()))
	if err != nil {
		e.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
	e.Cleanup(func() { _ = conn.Close() })
	return conn
}

// expectClosed waits until the other side closes the connection, and returns what it sent.
func (e *endpoint) expectClosed(conn net.Conn) []byte {
	e.Helper()
	b, err := io.ReadAll(conn)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		e.Fatal("the client was not disconnected")
	}
	return b
}

func (e *endpoint) validRequest() []byte {
	request := newRequest(false, 4, 4, []byte("valid"))
	return request.append(nil, mpaRequestKey)
}

// expectValidClient checks that Accept returns the request of a valid client, and rejects it.
func (e *endpoint) expectValidClient() {
	e.Helper()
	e.expectRequest(e.dial())
}

// expectRequest checks that the request of a valid client on a connection arrives.
func (e *endpoint) expectRequest(conn net.Conn) {
	e.Helper()
	if _, err := conn.Write(e.validRequest()); err != nil {
		e.Fatal(err)
	}
	request, err := e.listener.Accept(contextFor(e.T))
	if err != nil {
		e.Fatal(err)
	}
	if got := string(request.PrivateData()); got != "valid" {
		e.Errorf("private data %q", got)
	}
	if err := request.Reject([]byte("no")); err != nil {
		e.Fatal(err)
	}
	if reply := e.expectClosed(conn); len(reply) < mpaHeaderBytes || reply[16]&mpaReject == 0 {
		e.Errorf("reply %x", reply)
	}
}

// connect makes a connection to another endpoint's listener, and returns both ends.
func (e *endpoint) connect(responder *endpoint) []*connection {
	e.Helper()
	accepted := make(chan rdma.Connection, 1)
	go func() {
		defer close(accepted)
		request, err := responder.listener.Accept(contextFor(e.T))
		if err != nil {
			return
		}
		if conn, err := request.Accept(contextFor(e.T), responder.config); err == nil {
			accepted <- conn
		}
	}()
	conn, err := e.device.Connect(contextFor(e.T), responder.listener.Address(), e.config)
	if err != nil {
		e.Fatal(err)
	}
	other, ok := <-accepted
	if !ok {
		e.Fatal("the request was not accepted")
	}
	return []*connection{conn.(*connection), other.(*connection)}
}

func (e *endpoint) closeAll(conns []*connection) {
	for _, c := range conns {
		c.Close()
		e.collectEnd()
	}
}

// collectEnd polls until a connection has ended.
func (e *endpoint) collectEnd() {
	e.Helper()
	completions := make([]rdma.Completion, 1)
	deadline := time.Now().Add(testkit.Patience)
	for e.config.Queue.Poll(completions) == 0 || completions[0].Opcode != rdma.OpDisconnected {
		if time.Now().After(deadline) {
			e.Fatal("the connection did not end")
		}
		runtime.Gosched()
	}
}

func TestInvalidClientsAreDisconnected(t *testing.T) {
	e := newEndpoint(t, Options{})
	markers := mpaFrame{revision: 2, enhanced: true, markers: true}
	long := mpaFrame{revision: 1, privateData: make([]byte, rdma.MaxPrivateData+1)}
	rtr := mpaFrame{revision: 2, enhanced: true, peerToPeer: true, rtrFPDU: true}
	for name, bytes := range map[string][]byte{
		"HTTP":                  []byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
		"a reply":               golden(t, "mpa_rep_v2"),
		"markers":               markers.append(nil, mpaRequestKey),
		"too much private data": long.append(nil, mpaRequestKey),
		"empty FPDU as the only ready-to-receive": rtr.append(nil, mpaRequestKey),
	} {
		conn := e.dial()
		if _, err := conn.Write(bytes); err != nil {
			t.Fatal(err)
		}
		reply := e.expectClosed(conn)
		if len(reply) > 0 && reply[16]&mpaReject == 0 {
			t.Errorf("%s: the reply is %x", name, reply)
		}
	}
	e.expectValidClient()
}

func TestSilentClientsTimeOut(t *testing.T) {
	e := newEndpoint(t, Options{HandshakeTimeout: 50 * time.Millisecond})
	silent, slow := e.dial(), e.dial()
	if _, err := slow.Write(e.validRequest()[:25]); err != nil {
		t.Fatal(err)
	}
	e.expectClosed(silent)
	e.expectClosed(slow)
}

func TestSilentClientsCannotLockOutOthers(t *testing.T) {
	e := newEndpoint(t, Options{MaxPendingHandshakes: 4, HandshakeTimeout: testkit.Patience})
	var silent []*net.TCPConn
	for range 20 {
		silent = append(silent, e.dial())
	}
	e.expectValidClient()
	for _, conn := range silent[:16] {
		e.expectClosed(conn)
	}
}

// poor is a network whose listeners run out of descriptors once, after some connections.
type poor struct {
	network.Kernel
	after int
}

type poorListener struct {
	network.Listener
	left *int // connections before Accept fails; only Accept uses it
}

func (p poor) Listen(ctx context.Context, address netip.AddrPort) (network.Listener, error) {
	l, err := p.Kernel.Listen(ctx, address)
	return poorListener{l, new(p.after)}, err
}

func (l poorListener) Accept() (network.Stream, error) {
	if *l.left--; *l.left == -1 {
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	return l.Listener.Accept()
}

func TestSilentClientsGiveUpTheirDescriptors(t *testing.T) {
	e := newEndpoint(t, Options{Network: poor{after: 7}, HandshakeTimeout: testkit.Patience})
	var silent []*net.TCPConn
	for range 7 {
		silent = append(silent, e.dial())
	}
	for _, conn := range silent[:4] {
		e.expectClosed(conn)
	}
	e.expectValidClient()
}

func TestAcceptRequiresAnnouncedFirstFrame(t *testing.T) {
	for name, frame := range map[string][]byte{
		"a Send":                   golden(t, "send_hello"),
		"a Write with payload":     golden(t, "write_16"),
		"a Read with a length":     golden(t, "rreq"),
		"not iWARP":                []byte("GET / HTTP/1.1\r\n\r\n"),
		"a frame that is too long": {0xff, 0xff, 0xc1, 0x40},
	} {
		e := newEndpoint(t, Options{})
		conn := e.dial()
		if _, err := conn.Write(e.validRequest()); err != nil {
			t.Fatal(err)
		}
		request, err := e.listener.Accept(contextFor(t))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(frame); err != nil {
			t.Fatal(err)
		}
		if _, err := request.Accept(contextFor(t), e.config); err == nil {
			t.Errorf("%s: accepted", name)
		} else {
			terminateOf(t, err)
		}
		if _, err := request.Accept(contextFor(t), e.config); !errors.Is(err, status.BadState) {
			t.Errorf("%s: a second Accept returns %v", name, err)
		}
	}
}

// responder accepts one TCP connection, reads a request, and calls serve.
func (e *endpoint) responder(serve func(conn *net.TCPConn)) netip.AddrPort {
	e.Helper()
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(loopback, 0)))
	if err != nil {
		e.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := l.AcceptTCP()
		if err != nil {
			return
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
		if _, err := io.ReadFull(conn, make([]byte, mpaHeaderBytes+enhancedBytes)); err == nil {
			serve(conn)
		}
	}()
	e.Cleanup(func() { _ = l.Close(); <-done })
	return network.AddressOf(l.Addr())
}

var plainReply = mpaFrame{
	revision: 2, enhanced: true, peerToPeer: true, rtrRead: true, inboundReads: 4, outboundReads: 4,
}

// TestPeerThatMissesFirstFrameIsNudged plays Linux siw, which does not notice data that arrives
// right after its reply until more data arrives.
func TestPeerThatMissesFirstFrameIsNudged(t *testing.T) {
	e := newEndpoint(t, Options{})
	nudges := make(chan []byte, 1)
	remote := e.responder(func(conn *net.TCPConn) {
		_, _ = conn.Write(plainReply.append(nil, mpaReplyKey))
		first := make([]byte, len(appendZeroRead(nil, false)))
		nudge := make([]byte, len(appendZeroWrite(nil, false)))
		_, _ = io.ReadFull(conn, first)
		_, _ = io.ReadFull(conn, nudge)
		nudges <- nudge
		request := parseReadRequest(first)
		response := taggedHeader{op: opReadResponse, last: true, stag: request.sinkSTag}
		_, _ = conn.Write(appendTrailer(response.append(nil, 0), false))
		_, _ = io.Copy(io.Discard, conn)
	})
	conn, err := e.device.Connect(contextFor(t), remote, e.config)
	if err != nil {
		t.Fatal(err)
	}
	if nudge := <-nudges; !bytes.Equal(nudge, appendZeroWrite(nil, false)) {
		t.Errorf("nudged with %x", nudge)
	}
	conn.Close()
	if n := e.config.Queue.Poll(make([]rdma.Completion, 4)); n != 1 {
		t.Errorf("%d completions, want OpDisconnected only", n)
	}
}

func TestConnectFailsOnInvalidResponder(t *testing.T) {
	changed := func(change func(*mpaFrame)) []byte {
		reply := plainReply
		change(&reply)
		return reply.append(nil, mpaReplyKey)
	}
	followed := func(frame []byte) []byte {
		return append(plainReply.append(nil, mpaReplyKey), frame...)
	}
	for name, c := range map[string]struct {
		reply []byte
		want  status.Code
	}{
		"garbage": {[]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), status.Unexpected},
		"nothing": {nil, status.ConnectionReset},
		"revision 1": {
			changed(func(f *mpaFrame) { f.revision, f.enhanced = 1, false }),
			status.UnsupportedVersion,
		},
		"markers":        {changed(func(f *mpaFrame) { f.markers = true }), status.NotSupported},
		"too many Reads": {changed(func(f *mpaFrame) { f.outboundReads = 99 }), status.Unexpected},
		"reject": {
			changed(func(f *mpaFrame) { f.reject = true }), status.ConnectionAborted,
		},
		"Write instead of Read Response": {
			followed(golden(t, "rtr_write0")), status.ConnectionReset,
		},
		"Terminate": {followed(golden(t, "term_ddp_tagged_badstag")), status.NotPermitted},
		"close":     {followed(nil), status.ConnectionReset},
	} {
		e := newEndpoint(t, Options{})
		remote := e.responder(func(conn *net.TCPConn) {
			_, _ = conn.Write(c.reply)
			_ = conn.CloseWrite()
			_, _ = io.Copy(io.Discard, conn)
		})
		if _, err := e.device.Connect(contextFor(t), remote, e.config); !errors.Is(err, c.want) {
			t.Errorf("%s: Connect returns %v, want %v", name, err, c.want)
		}
	}
}

func TestConnectTimesOutOnSilentResponder(t *testing.T) {
	for name, reply := range map[string][]byte{
		"before the reply": nil, "after the reply": plainReply.append(nil, mpaReplyKey),
	} {
		e := newEndpoint(t, Options{})
		remote := e.responder(func(conn *net.TCPConn) {
			_, _ = conn.Write(reply)
			_, _ = io.Copy(io.Discard, conn)
		})
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		if _, err := e.device.Connect(ctx, remote, e.config); !errors.Is(err, status.TimeOut) {
			t.Errorf("%s: Connect returns %v", name, err)
		}
		cancel()
	}
}

type deviceMemory struct{}

func (deviceMemory) Device() memory.Device { return memory.Device{PCI: "03:00.0"} }

func TestRegisterRejectsOpaqueMemory(t *testing.T) {
	e := newEndpoint(t, Options{})
	region := memory.NewOpaque(deviceMemory{}, 0, 4096, nil)
	if _, err := e.config.Domain.Register(region, allRights); !errors.Is(err, status.NotSupported) {
		t.Errorf("Register returns %v", err)
	}
}

func TestEitherSideCanEnableCRC(t *testing.T) {
	for _, c := range []struct{ initiator, responder bool }{
		{false, false}, {true, false}, {false, true}, {true, true},
	} {
		x, y := newEndpoint(t, Options{CRC: c.initiator}), newEndpoint(t, Options{CRC: c.responder})
		conns := x.connect(y)
		for _, conn := range conns {
			if conn.useCRC != (c.initiator || c.responder) {
				t.Errorf("CRC of the initiator %t, of the responder %t, in use %t",
					c.initiator, c.responder, conn.useCRC)
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
		t.Errorf("Err is %v at the aborting side and %v at the peer",
			conns[0].Err(), conns[1].Err())
	}
}

// TestResponderWaitsForFirstFrame plays initiators of both MPA revisions that announce no
// ready-to-receive frame, like Linux siw.
func TestResponderWaitsForFirstFrame(t *testing.T) {
	for name, c := range map[string]struct {
		request    mpaFrame
		replyBytes int
	}{
		"revision 2": {
			mpaFrame{revision: 2, enhanced: true, inboundReads: 2, outboundReads: 2},
			mpaHeaderBytes + enhancedBytes,
		},
		"revision 1": {mpaFrame{revision: 1}, mpaHeaderBytes},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEndpoint(t, Options{})
			client := e.dial()
			if _, err := client.Write(c.request.append(nil, mpaRequestKey)); err != nil {
				t.Fatal(err)
			}
			request, err := e.listener.Accept(contextFor(t))
			if err != nil {
				t.Fatal(err)
			}
			handle, err := request.Accept(contextFor(t), e.config)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(client, make([]byte, c.replyBytes)); err != nil {
				t.Fatal(err)
			}
			checkSilence(t, e, handle.(*connection), client)
			e.closeAll([]*connection{handle.(*connection)})
		})
	}
}

// checkSilence checks that conn sends nothing before the client's first frame.
func checkSilence(t *testing.T, e *endpoint, conn *connection, client io.ReadWriter) {
	t.Helper()
	if err := conn.PostSend([]rdma.SendRequest{{Opcode: rdma.OpSend}}); err != nil {
		t.Fatal(err)
	}
	conn.Flush()
	e.config.Queue.Poll(nil)
	if conn.Sends.Next != 0 {
		t.Fatal("the message was sent before the initiator's first frame")
	}
	if _, err := client.Write(appendZeroWrite(nil, false)); err != nil {
		t.Fatal(err)
	}
	for conn.transmitter.accepted == 0 {
		e.config.Queue.Poll(nil)
	}
	frame := make([]byte, untaggedBytes+crcBytes)
	if _, err := io.ReadFull(client, frame); err != nil {
		t.Fatal(err)
	}
	e.config.Queue.Poll(make([]rdma.Completion, 1))
	if got, v := parsePrefix(frame); v != nil || got.op != opSend {
		t.Errorf("the responder sent %x", frame)
	}
}
