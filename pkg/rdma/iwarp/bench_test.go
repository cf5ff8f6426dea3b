// SPDX-License-Identifier: Apache-2.0

package iwarp_test

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// pollInBackground polls the side on a separate thread until stop is called. each handles the
// completions.
func (s *side) pollInBackground(b *testing.B, each func(*rdma.Completion)) (stop func()) {
	var stopped atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for !stopped.Load() {
			n := s.queue.Poll(s.poll[:])
			for i := range s.poll[:n] {
				each(&s.poll[i])
			}
			if n > 0 {
				s.conn.Flush()
			} else {
				runtime.Gosched()
			}
		}
	}()
	return func() {
		stopped.Store(true)
		<-done
	}
}

// collect polls the side until n completions have arrived.
func (s *side) collect(b *testing.B, n int) {
	for s.arrived < n {
		if s.progress(b) == 0 {
			runtime.Gosched()
		}
		if s.disconnected {
			b.Fatalf("connection ended: %v", s.conn.Err())
		}
	}
	s.arrived -= n
}

var benchmarkSizes = []int{64 << 10, 128 << 10}

func BenchmarkWriteBandwidth(b *testing.B) { benchmarkBandwidth(b, rdma.OpWrite) }

func BenchmarkReadBandwidth(b *testing.B) { benchmarkBandwidth(b, rdma.OpRead) }

func benchmarkBandwidth(b *testing.B, opcode rdma.Opcode) {
	const depth = 8
	for framing, connect := range framings {
		for _, size := range benchmarkSizes {
			b.Run(fmt.Sprintf("%dKiB/%s", size>>10, framing), func(b *testing.B) {
				l := connect(b)
				stop := l.y.pollInBackground(b, func(*rdma.Completion) {})
				request := [1]rdma.SendRequest{{
					Opcode: opcode, Local: l.x.segment(0, size),
					RemoteAddress: l.y.memory.Base(), RemoteKey: l.y.memory.RemoteKey(),
				}}
				b.SetBytes(int64(size))
				b.ReportAllocs()
				outstanding := 0
				for b.Loop() {
					if outstanding == depth {
						l.x.collect(b, 1)
						outstanding--
					}
					if err := l.x.conn.PostSend(request[:]); err != nil {
						b.Fatal(err)
					}
					l.x.conn.Flush()
					outstanding++
				}
				l.x.collect(b, outstanding)
				stop()
			})
		}
	}
}

// BenchmarkSendRoundTrip is a ping-pong of 64-byte messages. Half of the result is the latency of a
// Send.
func BenchmarkSendRoundTrip(b *testing.B) {
	l := newLink(b, false)
	reply := [1]rdma.SendRequest{{Opcode: rdma.OpSend, Local: l.y.segment(0, 64)}}
	receipt := [1]rdma.ReceiveRequest{{Local: l.y.segment(0, 64)}}
	l.y.receive(b, 1, 64)
	stop := l.y.pollInBackground(b, func(c *rdma.Completion) {
		if c.Opcode == rdma.OpReceive && c.Status == rdma.StatusSuccess {
			_ = l.y.conn.PostReceive(receipt[:])
			_ = l.y.conn.PostSend(reply[:])
		}
	})
	b.ReportAllocs()
	for b.Loop() {
		l.x.receive(b, 1, 64)
		l.x.post[0] = rdma.SendRequest{Opcode: rdma.OpSend, Local: l.x.segment(0, 64)}
		l.x.start(b, 1)
		l.x.collect(b, 2)
	}
	stop()
}

// BenchmarkWriteAndSend does what a target does for 4 KiB reads: it posts the data and the response
// as one chain, with many chains in flight.
func BenchmarkWriteAndSend(b *testing.B) { benchmarkMessages(b, 4096) }

// BenchmarkSendRate measures the rate of 64-byte messages.
func BenchmarkSendRate(b *testing.B) { benchmarkMessages(b, 0) }

// benchmarkMessages sends messages at depth 32, each preceded by a Write of size bytes if size is
// not 0. The receiver returns credits in groups.
func benchmarkMessages(b *testing.B, size int) {
	const depth, grant = 32, 16
	l := newLink(b, false)
	l.y.receive(b, 2*depth, 64)
	credit := [1]rdma.SendRequest{{Opcode: rdma.OpSend, Local: l.y.segment(0, 64)}}
	receipt := [1]rdma.ReceiveRequest{{Local: l.y.segment(0, 64)}}
	received := 0
	stop := l.y.pollInBackground(b, func(c *rdma.Completion) {
		if c.Opcode != rdma.OpReceive || c.Status != rdma.StatusSuccess {
			return
		}
		_ = l.y.conn.PostReceive(receipt[:])
		if received++; received%grant == 0 {
			_ = l.y.conn.PostSend(credit[:])
		}
	})
	l.x.receive(b, 8, 64)
	s := &sender{side: l.x, peer: l.y, size: size, credits: depth, grant: grant}
	b.ReportAllocs()
	for b.Loop() {
		s.send(b)
	}
	stop()
}

// sender sends messages while it has credits.
type sender struct {
	side, peer *side
	size       int
	credits    int
	grant      int // credits per credit message
}

func (s *sender) send(b *testing.B) {
	for s.credits == 0 {
		s.side.conn.Flush()
		s.poll(b)
	}
	s.credits--
	x := s.side
	n := 0
	if s.size > 0 {
		x.post[0] = rdma.SendRequest{
			Opcode: rdma.OpWrite, Silent: true, Local: x.segment(4096, s.size),
			RemoteAddress: s.peer.memory.Base() + 4096, RemoteKey: s.peer.memory.RemoteKey(),
		}
		n = 1
	}
	x.post[n] = rdma.SendRequest{Opcode: rdma.OpSend, Local: x.segment(0, 64)}
	if err := x.conn.PostSend(x.post[:n+1]); err != nil {
		b.Fatal(err)
	}
}

func (s *sender) poll(b *testing.B) {
	x := s.side
	n := x.queue.Poll(x.poll[:])
	for i := range x.poll[:n] {
		switch c := &x.poll[i]; {
		case c.Status != rdma.StatusSuccess:
			b.Fatalf("%v: %v, %v", c.Opcode, c.Status, x.conn.Err())
		case c.Opcode == rdma.OpReceive:
			s.credits += s.grant
			x.receive(b, 1, 64)
		}
	}
	if n == 0 {
		runtime.Gosched()
	}
}

// BenchmarkIdlePoll measures the cost of polling while nothing happens, by the number of
// connections.
func BenchmarkIdlePoll(b *testing.B) {
	for _, count := range []int{1, 2, 3, 8, 128, 256} {
		b.Run(fmt.Sprintf("connections=%d", count), func(b *testing.B) {
			q := newIdleConnections(b, count)
			var completions [8]rdma.Completion
			b.ReportAllocs()
			for b.Loop() {
				q.Poll(completions[:])
			}
		})
	}
}

// BenchmarkCostPerMessage does the work of both ends on one thread, so that it measures the
// processor time per message and not how long threads wait for each other. It sends batches of 32
// messages of 64 bytes, alone and each preceded by a Write.
func BenchmarkCostPerMessage(b *testing.B) {
	for framing := range framings {
		for _, size := range []int{0, 4096, 64 << 10} {
			b.Run(fmt.Sprintf("write=%d/%s", size, framing), func(b *testing.B) {
				costPerMessage(b, size, framing)
			})
		}
	}
}

func costPerMessage(b *testing.B, size int, framing string) {
	const batch = 32
	l := framings[framing](b)
	s := &sender{side: l.x, peer: l.y, size: size}
	b.ReportAllocs()
	for b.Loop() {
		if s.credits == 0 {
			l.x.conn.Flush()
			l.await(b, l.y, l.sent)
			l.await(b, l.x, l.sent)
			l.y.receive(b, batch, 64)
			s.credits, l.sent = batch, 0
		}
		s.send(b)
		l.sent++
	}
	l.await(b, l.y, l.sent)
}

// newIdleConnections returns a queue with count idle connections.
func newIdleConnections(t testing.TB, count int) rdma.CompletionQueue {
	t.Helper()
	x, y := newSide(t, false), newSide(t, false)
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	listener, err := y.device.Listen(ctx, netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	config := func(s *side) rdma.ConnectionConfig {
		return rdma.ConnectionConfig{
			Domain: s.domain, Queue: s.queue, SendRequests: 1, ReceiveRequests: 1,
		}
	}
	failed := make(chan error, 1)
	var conns []rdma.Connection
	for range count {
		go func() {
			conn, err := x.device.Connect(ctx, listener.Address(), config(x))
			conns = append(conns, conn)
			failed <- err
		}()
		request, err := listener.Accept(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := request.Accept(ctx, config(y)); err != nil {
			t.Fatal(err)
		}
		if err := <-failed; err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { closeIdleConnections(x, y, conns) })
	x.queue.Poll(nil)
	return x.queue
}

// closeIdleConnections closes all connections and waits until both sides have polled their ends.
func closeIdleConnections(x, y *side, conns []rdma.Connection) {
	for _, c := range conns {
		c.Close()
	}
	for _, s := range []*side{x, y} {
		for ended := 0; ended < len(conns); {
			ended += s.queue.Poll(s.poll[:])
		}
		_ = s.queue.Close()
	}
}

func TestDataPathDoesNotAllocate(t *testing.T) {
	for name, connect := range framings {
		for _, size := range []int{64, 4096, 128 << 10} {
			l := connect(t)
			exchange := func() {
				l.y.receive(t, 1, 64)
				l.x.chain(t, l.y, size)
				l.await(t, l.y, 1)
				l.await(t, l.x, 2)
				l.x.read(t, l.y, size)
				l.await(t, l.x, 1)
			}
			for range 300 { // until all lists have their final size
				exchange()
			}
			if n := testing.AllocsPerRun(200, exchange); n != 0 {
				t.Errorf("%s: %v allocations for a Write, a Send, and a Read of %d bytes",
					name, n, size)
			}
		}
	}
}
