//go:build verbs

package verbs_test

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs"
)

func TestTheDataPathDoesNotAllocate(t *testing.T) {
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
		for range 100 { // lists grow to their size
			exchange()
		}
		if n := testing.AllocsPerRun(200, exchange); n != 0 {
			t.Errorf("%s: %v allocations for Writes, a Send and Reads", name, n)
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

// The transfers are those of perftest's ib_write_bw and ib_read_bw at their
// defaults: 64 KiB, 128 outstanding Writes or as many Reads as the depth
// allows.

func BenchmarkWrite64KiB(b *testing.B) {
	benchmarkDevices(b, func(b *testing.B, l *link) { l.bandwidth(b, rdma.OpWrite, linkRequests/2) })
}

func BenchmarkRead64KiB(b *testing.B) {
	benchmarkDevices(b, func(b *testing.B, l *link) { l.bandwidth(b, rdma.OpRead, linkReads/2) })
}

// bandwidth keeps two chains under way.
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

// BenchmarkSendRoundTrip64B is two of ib_send_lat's latencies. As there, each
// side has a thread of its own that polls without pause, and the median is
// what counts.
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

// ping sends, waits for the answer, and so on.
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

// echo answers.
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

// awaitMessage polls until a message has come, and posts its receive again.
func (s *side) awaitMessage(t testing.TB) error {
	for {
		n := s.queue.Poll(s.completions[:])
		received := false
		for i := range n {
			c := &s.completions[i]
			if c.Status != rdma.StatusSuccess {
				return fmt.Errorf("%v completes with %v: %w", c.Opcode, c.Status, s.conn.Err())
			}
			received = received || c.Opcode == rdma.OpReceive
		}
		if received {
			s.postReceives(t, 1, 64)
			return nil
		}
	}
}

// BenchmarkEmptyPoll is what a look at an idle device costs.
func BenchmarkEmptyPoll(b *testing.B) {
	benchmarkDevices(b, func(b *testing.B, l *link) {
		for b.Loop() {
			l.x.queue.Poll(l.x.completions[:])
		}
	})
}
