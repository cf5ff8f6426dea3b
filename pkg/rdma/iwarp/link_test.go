// SPDX-License-Identifier: Apache-2.0

package iwarp_test

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/rdma/rdmatest"
)

// link is a connection whose two ends are in one process.
type link struct {
	x, y *side
	sent int // messages by x since it last waited
}

// side is one end of a link, with one memory region.
type side struct {
	device       rdma.Device
	address      netip.Addr
	domain       rdma.ProtectionDomain
	queue        rdma.CompletionQueue
	conn         rdma.Connection
	memory       rdma.MemoryRegion
	bytes        []byte
	post         [2]rdma.SendRequest
	receipt      [1]rdma.ReceiveRequest
	poll         [64]rdma.Completion
	arrived      int // completions that have not been awaited
	disconnected bool
}

const (
	sideBytes    = 2 << 20
	sideRequests = 256
)

func newSide(t testing.TB, crc bool) *side {
	t.Helper()
	return openSide(t, iwarp.Options{CRC: crc}, loopback)
}

var loopback = netip.MustParseAddr("127.0.0.1")

func openSide(t testing.TB, options iwarp.Options, address netip.Addr) *side {
	t.Helper()
	return openSideOf(t, iwarp.New(options), address)
}

func openSideOf(t testing.TB, provider rdma.Provider, address netip.Addr) *side {
	t.Helper()
	device, err := provider.Open(address)
	if err != nil {
		t.Fatal(err)
	}
	s := &side{device: device, address: address, bytes: make([]byte, sideBytes)}
	if s.domain, err = device.NewProtectionDomain(); err != nil {
		t.Fatal(err)
	}
	if s.queue, err = device.NewCompletionQueue(2 * sideRequests); err != nil {
		t.Fatal(err)
	}
	s.memory, err = s.domain.Register(memory.Wrap(s.bytes),
		memory.LocalWrite|memory.RemoteRead|memory.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *side) config() rdma.ConnectionConfig {
	return rdma.ConnectionConfig{
		Domain: s.domain, Queue: s.queue, SendRequests: sideRequests, ReceiveRequests: sideRequests,
		InboundReads: 16, OutboundReads: 16,
	}
}

func newLink(t testing.TB, crc bool) *link {
	t.Helper()
	return connectVia(t, crc, directly)
}

// framings are the ways in which FPDUs travel.
var framings = map[string]func(testing.TB) *link{
	"plain": func(t testing.TB) *link { return newLink(t, false) },
	"crc":   func(t testing.TB) *link { return newLink(t, true) },
	"tls": func(t testing.TB) *link {
		provider := rdmatest.OverTLS(t, iwarp.New(iwarp.Options{}))
		l := &link{x: openSideOf(t, provider, loopback), y: openSideOf(t, provider, loopback)}
		l.connect(t, directly)
		return l
	},
}

func directly(address netip.AddrPort) netip.AddrPort { return address }

// connectVia connects through the address that via returns, for instance the address of a proxy.
func connectVia(t testing.TB, crc bool, via func(netip.AddrPort) netip.AddrPort) *link {
	t.Helper()
	l := &link{x: newSide(t, crc), y: newSide(t, crc)}
	l.connect(t, via)
	return l
}

// connect connects x to y. The link's teardown becomes part of the test's cleanup.
func (l *link) connect(t testing.TB, via func(netip.AddrPort) netip.AddrPort) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	listener, err := l.y.device.Listen(ctx, netip.AddrPortFrom(l.y.address, 0))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	failed := make(chan error, 1)
	go func() {
		var err error
		l.x.conn, err = l.x.device.Connect(ctx, via(listener.Address()), l.x.config())
		failed <- err
	}()
	request, err := listener.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if l.y.conn, err = request.Accept(ctx, l.y.config()); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.tearDown(t) })
}

func (l *link) tearDown(t testing.TB) {
	for _, s := range []*side{l.x, l.y} {
		s.conn.Close()
		for !s.disconnected {
			s.progress(t)
		}
		if err := s.memory.Deregister(); err != nil {
			t.Error(err)
		}
		if err := s.queue.Close(); err != nil {
			t.Error(err)
		}
		if err := s.domain.Close(); err != nil {
			t.Error(err)
		}
		if err := s.device.Close(); err != nil {
			t.Error(err)
		}
	}
}

// progress polls once.
func (s *side) progress(t testing.TB) int {
	n := s.queue.Poll(s.poll[:])
	for i := range s.poll[:n] {
		c := &s.poll[i]
		if c.Opcode == rdma.OpDisconnected {
			s.disconnected = true
			continue
		}
		if c.Status != rdma.StatusSuccess && c.Status != rdma.StatusFlushed {
			t.Errorf("%v: %v", c.Opcode, c.Status)
		}
		s.arrived++
	}
	return n
}

// await polls both sides until n completions of s have arrived.
func (l *link) await(t testing.TB, s *side, n int) {
	for s.arrived < n {
		if l.x.progress(t)+l.y.progress(t) == 0 {
			if l.x.disconnected || l.y.disconnected {
				t.Fatalf("connection ended: %v, %v", l.x.conn.Err(), l.y.conn.Err())
			}
			runtime.Gosched()
		}
	}
	s.arrived -= n
}

func (s *side) segment(offset uint64, size int) rdma.Segment {
	return rdma.Segment{
		Key: s.memory.LocalKey(), Address: s.memory.Base() + offset, Length: uint32(size),
	}
}

func (s *side) receive(t testing.TB, count, size int) {
	for range count {
		s.receipt[0] = rdma.ReceiveRequest{Local: s.segment(0, size)}
		if err := s.conn.PostReceive(s.receipt[:]); err != nil {
			t.Fatal(err)
		}
	}
}

// chain posts a Write and, in the same chain, a Send that announces it.
func (s *side) chain(t testing.TB, peer *side, size int) {
	s.post[0] = rdma.SendRequest{
		Opcode: rdma.OpWrite, Local: s.segment(4096, size),
		RemoteAddress: peer.memory.Base() + 4096, RemoteKey: peer.memory.RemoteKey(),
	}
	s.post[1] = rdma.SendRequest{Opcode: rdma.OpSend, Local: s.segment(0, 64)}
	s.start(t, 2)
}

func (s *side) read(t testing.TB, peer *side, size int) {
	s.post[0] = rdma.SendRequest{
		Opcode: rdma.OpRead, Local: s.segment(4096, size),
		RemoteAddress: peer.memory.Base() + 4096, RemoteKey: peer.memory.RemoteKey(),
	}
	s.start(t, 1)
}

func (s *side) start(t testing.TB, n int) {
	if err := s.conn.PostSend(s.post[:n]); err != nil {
		t.Fatal(err)
	}
	s.conn.Flush()
}

// direction is the way in which bytes go through a proxy.
type direction int

const (
	toListener direction = iota
	toDialer
)

// proxy forwards one TCP connection. observe is called with every piece before it is forwarded.
// piece returns the largest size of the next piece of a direction, whose goroutine calls it.
type proxy struct {
	piece   func(direction) int
	observe func(direction, []byte)
}

// start returns the address to connect to instead of target.
func (p proxy) start(t testing.TB, target netip.AddrPort) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		defer l.Close()
		near, err := l.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", target.String())
		if err != nil {
			t.Error(err)
			_ = near.Close()
			return
		}
		running.Go(func() { p.forward(far, near, toListener) })
		running.Go(func() { p.forward(near, far, toDialer) })
	})
	t.Cleanup(func() {
		_ = l.Close()
		running.Wait()
	})
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func (p proxy) forward(to, from net.Conn, d direction) {
	defer to.(*net.TCPConn).CloseWrite()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer[:min(p.piece(d), len(buffer))])
		if n > 0 {
			p.observe(d, buffer[:n])
			if _, err := to.Write(buffer[:n]); err != nil {
				_, _ = io.Copy(io.Discard, from)
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// randomPieces returns a source of sizes that are mostly small and occasionally large.
func randomPieces(seed uint64) func(direction) int {
	random := map[direction]*rand.Rand{
		toListener: rand.New(rand.NewPCG(seed, 0)), toDialer: rand.New(rand.NewPCG(seed, 1)),
	}
	return func(d direction) int { return 1<<random[d].IntN(17)>>random[d].IntN(3) | 1 }
}

func observeNothing(direction, []byte) {}
