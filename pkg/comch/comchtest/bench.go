// SPDX-License-Identifier: Apache-2.0

package comchtest

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// The size of a consumer in a benchmark: at most so many receives, and bytes of memory.
const (
	benchReceives = 256
	benchMemory   = 8 << 20
	benchBatch    = 32 // receives per poll
)

// payload is the size of the messages of a benchmark.
type payload struct {
	name               string
	length, immediates int // bytes
}

var payloads = []payload{
	{"empty", 0, 0}, {"immediate-8B", 0, 8}, {"immediate-32B", 0, 32},
	{"64B", 64, 0}, {"4KiB", 4 << 10, 0}, {"1MiB", 1 << 20, 0},
}

// Bench measures the messages of a provider, by size, on threads that only poll: round trips, and
// the rate from one to four producers to one consumer. The consumer does not read the messages.
// Bench first measures a bare round trip, one cache line to another core and one back, which is the
// least that any provider needs. The metric x-bare is a multiple of that time. It also measures how
// long it takes to ask for the end of a connection.
func Bench(b *testing.B, config Config) {
	s := &Suite{Config: config}
	var err error
	s.Capabilities, err = config.Provider.Capabilities(s.ServerDevice())
	testkit.SkipIfNotSupported(b, "get capabilities of device "+s.ServerDevice(), err)
	bare := bareRoundTrip()
	b.Run("BareCacheLines", func(b *testing.B) {
		for b.Loop() {
			bare = min(bare, bareRoundTrip())
		}
		b.ReportMetric(bare, "ns/round-trip")
	})
	b.Run("HasEnded", s.benchHasEnded)
	for _, load := range payloads {
		b.Run("RoundTrip/"+load.name, func(b *testing.B) { s.benchRoundTrip(b, load, bare) })
	}
	for _, load := range payloads {
		for producers := 1; producers <= 4; producers++ {
			b.Run(fmt.Sprintf("Rate/%s/producers-%d", load.name, producers),
				func(b *testing.B) { s.benchRate(b, load, producers, bare) })
		}
	}
}

func (s *Suite) benchHasEnded(b *testing.B) {
	config := s.ServerConfig()
	server, err := s.Provider.Listen(b.Context(), config)
	if err != nil {
		b.Fatal(err)
	}
	client, err := s.Provider.Connect(b.Context(), s.ClientConfig(config.Name))
	if err != nil {
		b.Fatal(err)
	}
	accepted, err := server.Accept(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if comch.HasEnded(accepted, time.Now()) {
			b.Fatal("the peer has gone")
		}
	}
	client.Abort()
	_, _ = accepted.Close(), server.Close()
}

// bareRoundTrip measures the time in nanoseconds that a cache line takes to another core, and
// another one back.
func bareRoundTrip() float64 {
	const rounds = 200_000
	var lines struct {
		_     [128]byte
		there atomic.Uint64
		_     [120]byte
		back  atomic.Uint64
		_     [120]byte
	}
	start := time.Now()
	onThreads(func() {
		for i := uint64(1); i <= rounds; i++ {
			lines.there.Store(i)
			awaitLine(&lines.back, i)
		}
	}, func() {
		for i := uint64(1); i <= rounds; i++ {
			awaitLine(&lines.there, i)
			lines.back.Store(i)
		}
	})
	return float64(time.Since(start).Nanoseconds()) / rounds
}

func awaitLine(line *atomic.Uint64, value uint64) {
	var wait impatience
	for line.Load() != value {
		wait.miss()
	}
}

// impatience yields the core, but only after a long wait. Without it a benchmark would not end on a
// machine with fewer cores than threads.
type impatience int

func (i *impatience) miss() {
	*i++
	if *i > 1<<12 {
		*i = 0
		runtime.Gosched()
	}
}

// onThreads runs each function on its own thread and waits for all of them.
func onThreads(functions ...func()) {
	var group sync.WaitGroup
	for _, run := range functions {
		group.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			run()
		})
	}
	group.Wait()
}

// benchConnection returns both sides of a connection.
func (s *Suite) benchConnection(b *testing.B) (client, server comch.Connection) {
	b.Helper()
	config := s.ServerConfig()
	listener, err := s.Provider.Listen(context.Background(), config)
	if err != nil {
		b.Fatal(err)
	}
	client, err = s.Provider.Connect(context.Background(), s.ClientConfig(config.Name))
	if err != nil {
		b.Fatal(err)
	}
	server, err = listener.Accept(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		client.Abort()
		server.Abort()
		_ = listener.Close()
	})
	return client, server
}

// benchConsumer is a consumer with all its receives posted.
type benchConsumer struct {
	comch.Consumer
	length   uint32 // of posted buffers
	received [benchBatch]comch.Received
}

func newBenchConsumer(b *testing.B, on comch.Connection, load payload) *benchConsumer {
	b.Helper()
	size := max(load.length, 1)
	count := min(benchReceives, benchMemory/size)
	consumer, err := on.NewConsumer(context.Background(),
		comch.ConsumerConfig{Receives: count, MemorySize: count * size})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = consumer.Close() })
	for i := range count {
		if err := consumer.PostReceive(uint32(i*size), uint32(load.length), 0); err != nil {
			b.Fatal(err)
		}
	}
	consumer.Flush()
	return &benchConsumer{Consumer: consumer, length: uint32(load.length)}
}

// benchProducer is a producer with the message that it sends.
type benchProducer struct {
	comch.Producer
	late               comch.LateProducer // nil if sends complete at once
	message, immediate []byte
	pending            int // sends of a late producer in flight
}

func newBenchProducer(b *testing.B, on comch.Connection, consumer *benchConsumer,
	load payload) *benchProducer {
	b.Helper()
	producer, err := on.NewProducer(context.Background(), consumer.ID())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = producer.Close() })
	late, _ := producer.(comch.LateProducer)
	return &benchProducer{
		Producer: producer, late: late, message: make([]byte, load.length),
		immediate: make([]byte, load.immediates),
	}
}

// poll lets the sends in flight continue.
func (p *benchProducer) poll() {
	if p != nil && p.late != nil {
		p.pending -= p.late.Poll()
	}
}

// finish waits until nothing is in flight.
func (p *benchProducer) finish() {
	var wait impatience
	for p.late != nil && p.pending > 0 && p.late.State() == progress.Running {
		p.poll()
		wait.miss()
	}
}

// Send sends count messages as fast as the consumer has room for them.
func (p *benchProducer) send(b *testing.B, count int) {
	var wait impatience
	for sent := 0; sent < count; {
		switch err := p.Send(p.message, p.immediate); err {
		case nil:
			sent++
			p.pending++
		case error(status.Again):
			p.poll()
			wait.miss()
		default:
			b.Error(err)
			return
		}
		p.Flush()
	}
}

// receive receives count messages and posts their buffers again. The sends of producer, which may
// be nil, continue meanwhile.
func (c *benchConsumer) receive(b *testing.B, count int, producer *benchProducer) {
	var wait impatience
	for received := 0; received < count; {
		n := c.Poll(c.received[:min(benchBatch, count-received)])
		if n == 0 {
			producer.poll()
			wait.miss()
			continue
		}
		for i := range c.received[:n] {
			if err := c.PostReceive(c.received[i].Offset, c.length, 0); err != nil {
				b.Error(err)
				return
			}
		}
		c.Flush()
		received += n
	}
}

func (s *Suite) benchRoundTrip(b *testing.B, load payload, bare float64) {
	client, server := s.benchConnection(b)
	there, back := newBenchConsumer(b, server, load), newBenchConsumer(b, client, load)
	ping, pong := newBenchProducer(b, client, there, load), newBenchProducer(b, server, back, load)
	rounds := b.N
	b.ReportAllocs()
	b.ResetTimer()
	onThreads(func() {
		for range rounds {
			ping.send(b, 1)
			back.receive(b, 1, ping)
		}
	}, func() {
		for range rounds {
			there.receive(b, 1, pong)
			pong.send(b, 1)
		}
		pong.finish()
	})
	b.StopTimer()
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/bare, "x-bare")
}

func (s *Suite) benchRate(b *testing.B, load payload, producers int, bare float64) {
	client, server := s.benchConnection(b)
	consumer := newBenchConsumer(b, server, load)
	each := (b.N + producers - 1) / producers
	threads := []func(){func() { consumer.receive(b, each*producers, nil) }}
	for range producers {
		producer := newBenchProducer(b, client, consumer, load)
		threads = append(threads, func() {
			producer.send(b, each)
			producer.finish()
		})
	}
	b.SetBytes(int64(load.length))
	b.ReportAllocs()
	b.ResetTimer()
	onThreads(threads...)
	b.StopTimer()
	b.ReportMetric(float64(each*producers)/b.Elapsed().Seconds(), "msg/s")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(each*producers)/bare, "x-bare")
}
