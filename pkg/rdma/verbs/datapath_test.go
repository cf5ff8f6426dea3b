// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package verbs_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs"
)

func TestDataPathDoesNotAllocate(t *testing.T) {
	for name, address := range testDevices(t) {
		l := newLink(t, verbs.Options{}, address)
		exchange := func() {
			l.y.postReceives(t, 1, 64)
			l.x.transfer(t, l.y, rdma.OpWrite, 4, 4096)
			l.x.send(t, 64)
			l.await(l.x, 2)
			l.await(l.y, 1)
			l.x.transfer(t, l.y, rdma.OpRead, 2, 4096)
			l.await(l.x, 1)
		}
		for range 100 { // until lists have grown to their final size
			exchange()
		}
		if n := testing.AllocsPerRun(200, exchange); n != 0 {
			t.Errorf("%s: %v allocations for Writes, a Send, and Reads; want 0", name, n)
		}
	}
}

func benchmarkDevices(b *testing.B, run func(*testing.B, *link)) {
	for name, address := range testDevices(b) {
		b.Run(name, func(b *testing.B) {
			l := newLink(b, verbs.Options{}, address)
			b.ReportAllocs()
			run(b, l)
		})
	}
}

// BenchmarkWrite64KiB transfers as perftest's ib_write_bw does by default: 64 KiB, 128 outstanding
// Writes.

func BenchmarkWrite64KiB(b *testing.B) {
	benchmarkDevices(b, func(b *testing.B, l *link) {
		l.bandwidth(b, rdma.OpWrite, linkRequests/2)
	})
}

// BenchmarkRead64KiB transfers as perftest's ib_read_bw does: 64 KiB, with as many outstanding
// Reads as the read depth allows.
func BenchmarkRead64KiB(b *testing.B) {
	benchmarkDevices(b, func(b *testing.B, l *link) {
		l.bandwidth(b, rdma.OpRead, linkReads/2)
	})
}

// bandwidth keeps two chains of requests in flight.
func (l *link) bandwidth(b *testing.B, opcode rdma.Opcode, chain int) {
	const size = 64 << 10
	b.SetBytes(size)
	outstanding := 0
	left := b.N
	b.ResetTimer()
	for left > 0 || outstanding > 0 {
		for left > 0 && outstanding < 2 {
			n := min(chain, left)
			l.x.transfer(b, l.y, opcode, n, size)
			left -= n
			outstanding++
		}
		outstanding -= l.await(l.x, 1)
	}
}

// BenchmarkSendRoundTrip64B measures twice the latency that ib_send_lat reports. As there, each
// side has its own thread that polls without pause, and the result is the median.
func BenchmarkSendRoundTrip64B(b *testing.B) {
	benchmarkDevices(b, func(b *testing.B, l *link) {
		l.x.postReceives(b, 2, 64)
		l.y.postReceives(b, 2, 64)
		rounds := make([]time.Duration, b.N)
		b.ResetTimer()
		echoed := make(chan error, 1)
		go func() { echoed <- l.y.echo(b, b.N) }()
		if err := errors.Join(l.x.ping(b, rounds), <-echoed); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		slices.Sort(rounds)
		b.ReportMetric(float64(rounds[len(rounds)/2]), "p50-ns")
	})
}

// ping sends a message and waits for its echo, once for each element of rounds, which it sets to
// the round trip time.
func (s *side) ping(t testing.TB, rounds []time.Duration) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for i := range rounds {
		start := time.Now()
		s.send(t, 64)
		if err := s.awaitMessage(t); err != nil {
			return err
		}
		rounds[i] = time.Since(start)
	}
	return nil
}

// echo returns each message.
func (s *side) echo(t testing.TB, rounds int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for range rounds {
		if err := s.awaitMessage(t); err != nil {
			return err
		}
		s.send(t, 64)
	}
	return nil
}

// awaitMessage polls until a message has arrived, and posts its receive again.
func (s *side) awaitMessage(t testing.TB) error {
	for {
		n := s.queue.Poll(s.completions[:])
		received := false
		for i := range n {
			c := &s.completions[i]
			if c.Status != rdma.StatusSuccess {
				return fmt.Errorf("%v completed with %v: %w", c.Opcode, c.Status, s.conn.Err())
			}
			received = received || c.Opcode == rdma.OpReceive
		}
		if received {
			s.postReceives(t, 1, 64)
			return nil
		}
	}
}

// BenchmarkEmptyPoll measures the cost of polling an idle device.
func BenchmarkEmptyPoll(b *testing.B) {
	benchmarkDevices(b, func(b *testing.B, l *link) {
		for b.Loop() {
			l.x.queue.Poll(l.x.completions[:])
		}
	})
}

const (
	linkMemory   = 1 << 20
	linkRequests = 128
	linkReads    = 8
)

// side is one end of a link.
type side struct {
	domain rdma.ProtectionDomain
	queue  rdma.CompletionQueue
	conn   rdma.Connection
	memory rdma.MemoryRegion
	bytes  []byte
	region *memory.Region
	// sharesQueue is set if the queue is another side's.
	sharesQueue, closed bool
	// The rest is scratch space, so that posting and polling do not allocate.
	completions [64]rdma.Completion
	requests    [linkRequests]rdma.SendRequest
	receives    [linkRequests]rdma.ReceiveRequest
}

// link is two connected sides on one device. The goroutine of the test drives both.
type link struct {
	t      testing.TB
	device rdma.Device
	x, y   *side
}

// newLink opens a device and connects two sides on it.
func newLink(t testing.TB, options verbs.Options, address netip.Addr) *link {
	t.Helper()
	provider, err := verbs.New(options)
	must(t, err)
	device, err := provider.Open(address)
	must(t, err)
	t.Cleanup(func() { must(t, device.Close()) })
	l := &link{t: t, device: device}
	l.x, l.y = l.newSide(), l.newSide()
	l.connect(address)
	return l
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (l *link) newSide() *side {
	domain, err := l.device.NewProtectionDomain()
	must(l.t, err)
	return l.newSideIn(domain)
}

// newSideIn makes a side in a protection domain, which it closes.
func (l *link) newSideIn(domain rdma.ProtectionDomain) *side {
	t := l.t
	s := &side{domain: domain}
	var err error
	s.queue, err = l.device.NewCompletionQueue(4 * linkRequests)
	must(t, err)
	s.region, err = memory.Alloc("verbs_test", linkMemory)
	must(t, err)
	s.bytes = s.region.Bytes()
	s.memory, err = s.domain.Register(s.region,
		memory.LocalWrite|memory.RemoteRead|memory.RemoteWrite)
	must(t, err)
	t.Cleanup(func() { s.close(t) })
	return s
}

// close ends the connection and closes what it used. The end of the test does it at the latest.
func (s *side) close(t testing.TB) {
	if s.closed {
		return
	}
	s.closed = true
	s.end(t)
	must(t, s.memory.Deregister())
	if !s.sharesQueue {
		must(t, s.queue.Close())
	}
	must(t, s.domain.Close())
	must(t, s.region.Close())
}

// end closes the connection and waits for its last completion.
func (s *side) end(t testing.TB) {
	if s.conn == nil {
		return
	}
	s.conn.Close()
	for deadline := time.Now().Add(testkit.Patience); time.Now().Before(deadline); {
		for _, c := range s.completions[:s.queue.Poll(s.completions[:])] {
			if c.Opcode == rdma.OpDisconnected {
				return
			}
		}
	}
	t.Error("the connection did not end")
}

func (s *side) config() rdma.ConnectionConfig {
	return rdma.ConnectionConfig{
		Domain: s.domain, Queue: s.queue, SendRequests: linkRequests, ReceiveRequests: linkRequests,
		InboundReads: linkReads, OutboundReads: linkReads,
	}
}

// connect connects both sides and sends the first message.
func (l *link) connect(address netip.Addr) {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	listener, err := l.device.Listen(ctx, netip.AddrPortFrom(address, 0))
	must(l.t, err)
	defer func() { must(l.t, listener.Close()) }()
	connected := make(chan error, 1)
	go func() {
		var err error
		l.x.conn, err = l.device.Connect(ctx, listener.Address(), l.x.config())
		connected <- err
	}()
	request, err := listener.Accept(ctx)
	must(l.t, err)
	l.y.conn, err = request.Accept(ctx, l.y.config())
	must(l.t, err)
	must(l.t, <-connected)
	l.y.postReceives(l.t, 1, 64)
	l.x.send(l.t, 64)
	l.await(l.x, 1)
	l.await(l.y, 1)
}

func (s *side) segment(length int) rdma.Segment {
	return rdma.Segment{Key: s.memory.LocalKey(), Address: s.memory.Base(), Length: uint32(length)}
}

func (s *side) postReceives(t testing.TB, count, length int) {
	for i := range count {
		s.receives[i] = rdma.ReceiveRequest{ID: uint64(i), Local: s.segment(length)}
	}
	if err := s.conn.PostReceive(s.receives[:count]); err != nil {
		t.Fatal(err)
	}
}

// transfer posts a chain of Writes or Reads, all silent except the last, and flushes it.
func (s *side) transfer(t testing.TB, peer *side, opcode rdma.Opcode, count, length int) {
	for i := range count {
		s.requests[i] = rdma.SendRequest{
			ID: uint64(i), Opcode: opcode, Silent: i < count-1, Local: s.segment(length),
			RemoteAddress: peer.memory.Base(), RemoteKey: peer.memory.RemoteKey(),
		}
	}
	s.post(t, count)
}

func (s *side) send(t testing.TB, length int) {
	s.requests[0] = rdma.SendRequest{Opcode: rdma.OpSend, Local: s.segment(length)}
	s.post(t, 1)
}

func (s *side) post(t testing.TB, count int) {
	if err := s.conn.PostSend(s.requests[:count]); err != nil {
		t.Fatal(err)
	}
	s.conn.Flush()
}

// await polls a side until it has at least count completions, which must be successful, and returns
// their number.
func (l *link) await(s *side, count int) (collected int) {
	var deadline time.Time
	for empty := 0; collected < count; empty++ {
		n := s.queue.Poll(s.completions[:])
		for i := range n {
			if c := &s.completions[i]; c.Status != rdma.StatusSuccess {
				l.t.Fatalf("%v completed with %v: %v", c.Opcode, c.Status, s.conn.Err())
			}
		}
		if collected += n; n > 0 {
			empty = 0
		}
		if empty%16 == 15 {
			runtime.Gosched()
		}
		if empty%(1<<16) != 1<<15 {
			continue
		}
		if deadline.IsZero() {
			deadline = time.Now().Add(testkit.Patience)
		} else if time.Now().After(deadline) {
			l.t.Fatalf("got %d completions within %v, want %d", collected, testkit.Patience, count)
		}
	}
	return collected
}
