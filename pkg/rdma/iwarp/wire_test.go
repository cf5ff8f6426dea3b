// SPDX-License-Identifier: Apache-2.0

package iwarp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/network/networktest"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/registration"
)

var loopback = netip.MustParseAddr("127.0.0.1")

// wireTest is an established connection whose peer is a plain stream of the test.
type wireTest struct {
	*testing.T
	device      *device
	domain      *registration.Domain
	queue       *completionQueue
	conn        *connection
	peer        network.Stream
	memory      *registration.Region
	completions []rdma.Completion
	disconnects int
	tornDown    bool
}

const testMemoryBytes = 128 << 10

func openDevice(t testing.TB, options Options) *device {
	t.Helper()
	d, err := New(options).Open(loopback)
	if err != nil {
		t.Fatal(err)
	}
	return d.(*device)
}

// newWireTest makes a connection in the responder's role with inbound and outbound read depths of
// 2.
func newWireTest(t *testing.T, useCRC bool) *wireTest {
	t.Helper()
	own, peer := tcpPair(t)
	return newWireTestOver(t, useCRC, own, peer)
}

// newWireTestOver makes the connection from one end of a stream.
func newWireTestOver(t *testing.T, useCRC bool, own, peer network.Stream) *wireTest {
	t.Helper()
	w := &wireTest{T: t, device: openDevice(t, Options{CRC: useCRC}), peer: peer}
	domain, err := w.device.NewProtectionDomain()
	if err != nil {
		t.Fatal(err)
	}
	queue, err := w.device.NewCompletionQueue(0)
	if err != nil {
		t.Fatal(err)
	}
	w.domain, w.queue = domain.(*registration.Domain), queue.(*completionQueue)
	w.memory = w.register(memory.Wrap(make([]byte, testMemoryBytes)), allRights)
	w.establish(useCRC, own)
	t.Cleanup(w.tearDown)
	return w
}

const allRights = memory.LocalWrite | memory.RemoteRead | memory.RemoteWrite

func (w *wireTest) register(region *memory.Region, access memory.Access) *registration.Region {
	w.Helper()
	r, err := w.domain.Register(region, access)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = r.Deregister() })
	return r.(*registration.Region)
}

func (w *wireTest) establish(useCRC bool, own network.Stream) {
	w.Helper()
	s, err := detachSocket(own)
	if err != nil {
		w.Fatal(err)
	}
	w.conn, err = newConnection(w.device, &rdma.ConnectionConfig{
		Domain: w.domain, Queue: w.queue,
		SendRequests: 16, ReceiveRequests: 16, InboundReads: 2, OutboundReads: 2,
	})
	if err != nil {
		w.Fatal(err)
	}
	if err := w.conn.establish(handshakeResult{
		socket: s, useCRC: useCRC,
		parameters: rdma.Parameters{InboundReads: 2, OutboundReads: 2},
	}); err != nil {
		w.Fatal(err)
	}
}

func tcpPair(t testing.TB) (x, y *net.TCPConn) {
	t.Helper()
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(loopback, 0)))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	x, err = net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr))
	if err != nil {
		t.Fatal(err)
	}
	if y, err = l.AcceptTCP(); err != nil {
		t.Fatal(err)
	}
	_ = y.SetDeadline(time.Now().Add(testkit.Patience))
	t.Cleanup(func() { _ = y.Close() })
	return x, y
}

// memoryPair returns both ends of a stream in memory.
func memoryPair(t testing.TB) (x, y network.Stream) {
	t.Helper()
	host := networktest.New(networktest.Config{}).Host(loopback)
	l, err := host.Listen(contextFor(t), netip.AddrPortFrom(loopback, 0))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if x, err = host.Dial(contextFor(t), loopback, l.Address()); err != nil {
		t.Fatal(err)
	}
	if y, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	_ = y.SetDeadline(time.Now().Add(testkit.Patience))
	return x, y
}

func (w *wireTest) tearDown() {
	if w.tornDown {
		return
	}
	w.tornDown = true
	_ = w.peer.Close()
	w.conn.Close()
	w.pollUntil("the end", func() bool { return w.disconnects == 1 })
	if err := w.memory.Deregister(); err != nil {
		w.Error(err)
	}
	if err := w.queue.Close(); err != nil {
		w.Error(err)
	}
}

func (w *wireTest) poll() int {
	var completions [3]rdma.Completion
	n := w.queue.Poll(completions[:])
	for _, c := range completions[:n] {
		if c.Opcode == rdma.OpDisconnected {
			w.disconnects++
			continue
		}
		w.completions = append(w.completions, c)
	}
	return n
}

func (w *wireTest) pollUntil(what string, done func() bool) {
	w.Helper()
	for deadline := time.Now().Add(testkit.Patience); !done(); {
		if w.poll() == 0 {
			runtime.Gosched()
		}
		if time.Now().After(deadline) {
			w.Fatalf("%s did not happen", what)
		}
	}
}

// awaitEnd waits until the connection ends and returns its error.
func (w *wireTest) awaitEnd() error {
	w.Helper()
	w.pollUntil("the end of the connection", func() bool { return w.disconnects > 0 })
	return w.conn.Err()
}

// write makes the peer send bytes.
func (w *wireTest) write(b ...[]byte) {
	w.Helper()
	if _, err := w.peer.Write(bytes.Join(b, nil)); err != nil {
		w.Fatal(err)
	}
}

// frame returns an FPDU with a valid trailer.
func (w *wireTest) frame(header, payload []byte) []byte {
	return appendTrailer(append(bytes.Clone(header), payload...), w.conn.useCRC)
}

func (w *wireTest) writeFrame(offset uint64, payload []byte) []byte {
	h := taggedHeader{op: opWrite, last: true, stag: w.memory.LocalKey(), offset: offset}
	return w.frame(h.append(nil, len(payload)), payload)
}

func (w *wireTest) sendFrame(sequence uint32, payload []byte) []byte {
	h := untaggedHeader{op: opSend, last: true, sequence: sequence}
	return w.frame(h.append(nil, len(payload)), payload)
}

func (w *wireTest) readFrame(sequence uint32, r readRequest) []byte {
	return w.frame(r.append(nil, sequence), nil)
}

// readFPDU makes the peer read one FPDU while the connection is polled.
func (w *wireTest) readFPDU() []byte {
	w.Helper()
	type result struct {
		frame []byte
		err   error
	}
	results := make(chan result, 1)
	go func() {
		b := make([]byte, lengthBytes)
		_, err := io.ReadFull(w.peer, b)
		if err == nil {
			ulpdu := int(binary.BigEndian.Uint16(b))
			b = append(b, make([]byte, ulpdu+padLength(ulpdu)+crcBytes)...)
			_, err = io.ReadFull(w.peer, b[lengthBytes:])
		}
		results <- result{b, err}
	}()
	for {
		select {
		case r := <-results:
			if r.err != nil {
				w.Fatalf("read FPDU: %v", r.err)
			}
			return r.frame
		default:
			if w.poll() == 0 {
				runtime.Gosched()
			}
		}
	}
}

func (w *wireTest) receive(id uint64, offset, length int) {
	w.Helper()
	local := rdma.Segment{Key: w.memory.LocalKey(), Address: uint64(offset), Length: uint32(length)}
	if err := w.conn.PostReceive([]rdma.ReceiveRequest{{ID: id, Local: local}}); err != nil {
		w.Fatal(err)
	}
}

func (w *wireTest) post(opcode rdma.Opcode, id uint64, offset, length int) {
	w.Helper()
	local := rdma.Segment{Key: w.memory.LocalKey(), Address: uint64(offset), Length: uint32(length)}
	request := rdma.SendRequest{ID: id, Opcode: opcode, Local: local, RemoteKey: 0x11223300}
	if err := w.conn.PostSend([]rdma.SendRequest{request}); err != nil {
		w.Fatal(err)
	}
	w.conn.Flush()
}

// contextFor returns a context that ends with the test.
func contextFor(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	t.Cleanup(cancel)
	return ctx
}

// terminateOf returns the Terminate that ended the connection, in either direction.
func terminateOf(t testing.TB, err error) *TerminateError {
	t.Helper()
	var e *TerminateError
	if !errors.As(err, &e) {
		t.Fatalf("ended with %v, want a Terminate", err)
	}
	return e
}
