// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/rdma/shm"
)

// BenchmarkBesideAFlood measures what a session that keeps its queues full costs a session on the
// same workers that has one read outstanding: x-p50 and x-p99 are its latencies as multiples of
// those without the flood. Latency is the CPU time of the turns of relay and target between submit
// and completion, so that other load of the machine does not count. ns/flood-IO is what an IO of
// the flood adds to that time, which is what short turns cost.
func BenchmarkBesideAFlood(b *testing.B) {
	for _, provider := range []rdma.Provider{iwarp.New(iwarp.Options{}), shm.New(shm.Options{})} {
		for _, c := range []struct {
			size   string
			queues int
			large  bool
		}{{"4KiB", 1, false}, {"4KiB", 4, false}, {"128KiB", 1, true}} {
			name := fmt.Sprintf("%s/size=%s/queues=%d", provider.Name(), c.size, c.queues)
			b.Run(name, func(b *testing.B) {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				s := newSharedWorkers(b, provider)
				reader, flood := s.besideFlood(c.queues, c.large)
				beside := s.latency(b.N, reader, flood)
				s.finish(flood)
				alone := s.latency(b.N, reader, nil)
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(alone.p50, "ns-p50-alone")
				b.ReportMetric(beside.p50/alone.p50, "x-p50")
				b.ReportMetric(beside.p99/alone.p99, "x-p99")
				b.ReportMetric(float64(beside.floodIOs)/float64(b.N), "flood-IOs/read")
				b.ReportMetric((beside.total-alone.total)/float64(beside.floodIOs), "ns/flood-IO")
			})
		}
	}
}

// floodDepth is how many reads each queue of a flood has outstanding.
const floodDepth = 128

// besideFlood returns the queue of a session with one read outstanding, and the queues of a session
// that keeps them full, with IOs of 128 KiB if they are large.
func (w *sharedWorkers) besideFlood(
	queues int, large bool,
) (reader *chainRig, flood []*chainRig) {
	options := chainOptions{volumeMemory: true}
	reader = w.newSession(options).newChain(1)
	options.large = large
	neighbour := w.newSession(options)
	for range queues {
		queue := neighbour.newChain(floodDepth)
		queue.submit(iomsg.Read, floodDepth)
		flood = append(flood, queue)
	}
	return reader, flood
}

func TestAReaderWaitsForAShortTurnOfAFlood(t *testing.T) {
	for _, provider := range []rdma.Provider{iwarp.New(iwarp.Options{}), shm.New(shm.Options{})} {
		t.Run(provider.Name(), func(t *testing.T) {
			s := newSharedWorkers(t, provider)
			reader, flood := s.besideFlood(4, false)
			const warmUp, reads = 200, 200
			s.latency(warmUp, reader, flood)
			// A read takes a turn of the relay to send it, one of the target, and one of the relay
			// to respond. Without bounds, hundreds of IOs of the flood precede it.
			if m := s.latency(reads, reader, flood); m.floodIOs > 40*reads {
				t.Errorf("%d reads waited for %d IOs of another session", reads, m.floodIOs)
			}
			s.finish(flood)
		})
	}
}

// BenchmarkSessions measures the CPU time of relay and target for an IO, in nanoseconds, when
// several sessions on the same workers have 128 reads outstanding in all, and when one of them has
// all of these and the others are idle.
func BenchmarkSessions(b *testing.B) {
	for _, provider := range []rdma.Provider{iwarp.New(iwarp.Options{}), shm.New(shm.Options{})} {
		for _, sessions := range []int{1, 2, 4, 8, 16, 64, 256} {
			name := fmt.Sprintf("%s/sessions=%d", provider.Name(), sessions)
			b.Run(name+"/active=all", func(b *testing.B) {
				measureSessions(b, provider, sessions, sessions)
			})
			if sessions > 1 {
				b.Run(name+"/active=1", func(b *testing.B) {
					measureSessions(b, provider, sessions, 1)
				})
			}
		}
	}
}

// measureSessions reports what an IO costs when that many of the sessions are active.
func measureSessions(b *testing.B, provider rdma.Provider, sessions, active int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s := newSharedWorkers(b, provider)
	depth := max(1, 128/active)
	chains := make([]*chainRig, sessions)
	for i := range chains {
		chains[i] = s.newSession(chainOptions{volumeMemory: true}).newChain(depth)
	}
	for _, c := range chains[:active] {
		c.submit(iomsg.Read, depth)
	}
	total := int64(0)
	for left := b.N; left > 0; {
		start := threadTime(b)
		s.turn()
		total += threadTime(b) - start
		for _, c := range chains[:active] {
			if n := c.collect(); n > 0 {
				c.submit(iomsg.Read, n)
				left -= n
			}
		}
	}
	s.finish(chains[:active])
	b.ReportMetric(float64(total)/float64(b.N), "ns/op")
}

// turn lets each worker take a turn.
func (w *sharedWorkers) turn() {
	for _, worker := range w.workers {
		worker.engine.Progress()
	}
}

// finish waits until all IOs of full queues have completed.
func (w *sharedWorkers) finish(queues []*chainRig) {
	for _, queue := range queues {
		for left := len(queue.received); left > 0; left -= queue.collect() {
			w.turn()
		}
	}
}

// measurement is the outcome of latency. Percentiles are in nanoseconds.
type measurement struct {
	p50, p99 float64
	total    float64 // of all reads
	floodIOs int
}

// latency measures reads of reader, one after the other. Meanwhile each queue of the flood submits
// a read for each one that completes.
func (w *sharedWorkers) latency(reads int, reader *chainRig, flood []*chainRig) (m measurement) {
	samples := make([]int64, 0, reads)
	for range reads {
		reader.submit(iomsg.Read, 1)
		total := int64(0)
		for completed := 0; completed == 0; {
			start := threadTime(w.t)
			w.turn()
			total += threadTime(w.t) - start
			completed = reader.collect()
			for _, queue := range flood {
				if n := queue.collect(); n > 0 {
					m.floodIOs += n
					queue.submit(iomsg.Read, n)
				}
			}
		}
		samples = append(samples, total)
		m.total += float64(total)
	}
	slices.Sort(samples)
	m.p50, m.p99 = float64(samples[reads/2]), float64(samples[reads*99/100])
	return m
}

// threadTime returns the CPU time of the calling thread in nanoseconds.
func threadTime(t testing.TB) int64 {
	var now unix.Timespec
	check(t, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now))
	return now.Nano()
}
