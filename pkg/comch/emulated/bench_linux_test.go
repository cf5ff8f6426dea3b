// SPDX-License-Identifier: Apache-2.0

package emulated

import (
	"context"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/pkg/comch"
)

const (
	benchReceives = 256
	benchMessage  = 64 // bytes
)

// benchPath is a data path between two threads that share no mapping.
type benchPath struct {
	consumer comch.Consumer
	producer comch.Producer
}

// newBenchPaths creates a path in each direction.
func newBenchPaths(b *testing.B) (there, back benchPath) {
	b.Helper()
	client, server := newTestPair(b)
	for _, path := range []struct {
		made     *benchPath
		from, to *connection
	}{{&there, client, server}, {&back, server, client}} {
		ctx := context.Background()
		config := comch.ConsumerConfig{Receives: benchReceives,
			MemorySize: benchReceives * benchMessage}
		consumer, err := path.to.NewConsumer(ctx, config)
		if err != nil {
			b.Fatal(err)
		}
		producer, err := path.from.NewProducer(ctx, consumer.ID())
		if err != nil {
			b.Fatal(err)
		}
		for i := range uint32(benchReceives) {
			if err := consumer.PostReceive(i*benchMessage, benchMessage, uint64(i)); err != nil {
				b.Fatal(err)
			}
		}
		consumer.Flush()
		b.Cleanup(func() { _, _ = consumer.Close(), producer.Close() })
		*path.made = benchPath{consumer, producer}
	}
	return there, back
}

// onTwoThreads runs two functions in parallel, each on its own thread, and waits for both.
func onTwoThreads(first, second func()) {
	var wg sync.WaitGroup
	for _, run := range []func(){first, second} {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			run()
		})
	}
	wg.Wait()
}

// spinWait counts polls without result and yields the core after many of them, so that benchmarks
// also end on a machine without a second free core.
type spinWait int

func (i *spinWait) miss() {
	*i++
	if *i > 1<<14 {
		*i = 0
		runtime.Gosched()
	}
}

// BenchmarkRoundTrip compares a round trip of a message with its lower bound between two cores: one
// cache line each way.
func BenchmarkRoundTrip(b *testing.B) {
	b.Run("bare-cache-lines", benchmarkBareRoundTrip)
	b.Run("messages-polling", func(b *testing.B) { benchmarkRoundTrip(b, receivePolling) })
	b.Run("messages-sleeping", func(b *testing.B) { benchmarkRoundTrip(b, receiveSleeping) })
}

func benchmarkBareRoundTrip(b *testing.B) {
	b.ReportAllocs()
	layout := ringLayout{total: ringHeaderSize}
	own, other := mapTwice(b, layout.total)
	here, there := viewRing(own, layout).header, viewRing(other, layout).header
	total := uint32(b.N)
	b.ResetTimer()
	onTwoThreads(func() {
		for i := uint32(1); i <= total; i++ {
			var wait spinWait
			here.consumerSleeping.Store(i)
			for here.producersWaiting.Load() != i {
				wait.miss()
			}
		}
	}, func() {
		for i := uint32(1); i <= total; i++ {
			var wait spinWait
			for there.consumerSleeping.Load() != i {
				wait.miss()
			}
			there.producersWaiting.Store(i)
		}
	})
}

// receiveFunction receives one message, copies it and posts its buffer again, as a relay does.
// received has room for one.
type receiveFunction func(b *testing.B, consumer comch.Consumer, received []comch.Received,
	message []byte)

func benchmarkRoundTrip(b *testing.B, receive receiveFunction) {
	b.ReportAllocs()
	there, back := newBenchPaths(b)
	total := b.N
	b.ResetTimer()
	onTwoThreads(func() {
		message, received := make([]byte, benchMessage), make([]comch.Received, 1)
		for range total {
			sendNow(b, there.producer, message)
			receive(b, back.consumer, received, message)
		}
	}, func() {
		message, received := make([]byte, benchMessage), make([]comch.Received, 1)
		for range total {
			receive(b, there.consumer, received, message)
			sendNow(b, back.producer, message)
		}
	})
}

func sendNow(b *testing.B, producer comch.Producer, message []byte) {
	if err := producer.Send(message, nil); err != nil {
		b.Error(err)
	}
	producer.Flush()
}

func receivePolling(b *testing.B, consumer comch.Consumer, received []comch.Received,
	message []byte) {
	var wait spinWait
	for consumer.Poll(received) == 0 {
		wait.miss()
	}
	postAgain(b, consumer, &received[0], message)
	consumer.Flush()
}

func receiveSleeping(b *testing.B, consumer comch.Consumer, received []comch.Received,
	message []byte) {
	for consumer.Poll(received) == 0 {
		if !consumer.Arm() {
			continue
		}
		poll := []unix.PollFd{{Fd: int32(consumer.Descriptor()), Events: unix.POLLIN}}
		_, _ = unix.Poll(poll, -1)
		consumer.Clear()
		consumer.Disarm()
	}
	postAgain(b, consumer, &received[0], message)
	consumer.Flush()
}

func postAgain(b *testing.B, consumer comch.Consumer, r *comch.Received, message []byte) {
	copy(message, consumer.Memory()[r.Offset:r.Offset+r.Length])
	if err := consumer.PostReceive(r.Offset, benchMessage, r.UserData); err != nil {
		b.Error(err)
	}
}

// BenchmarkOneWay sends messages in one direction as fast as the consumer receives them.
func BenchmarkOneWay(b *testing.B) {
	b.ReportAllocs()
	there, _ := newBenchPaths(b)
	total := b.N
	b.ResetTimer()
	onTwoThreads(func() {
		message := make([]byte, benchMessage)
		var wait spinWait
		for sent := 0; sent < total; {
			if there.producer.Send(message, nil) == nil {
				sent++
				continue
			}
			there.producer.Flush()
			wait.miss()
		}
	}, func() { receiveMany(b, there.consumer, total) })
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}

func receiveMany(b *testing.B, consumer comch.Consumer, total int) {
	received := make([]comch.Received, 32)
	message := make([]byte, benchMessage)
	var wait spinWait
	for taken := 0; taken < total; {
		n := consumer.Poll(received)
		if n == 0 {
			wait.miss()
			continue
		}
		for i := range received[:n] {
			postAgain(b, consumer, &received[i], message)
		}
		consumer.Flush()
		taken += n
	}
}

// BenchmarkControlMessage sends a control message back and forth.
func BenchmarkControlMessage(b *testing.B) {
	b.ReportAllocs()
	client, server := newTestPair(b)
	ctx := context.Background()
	go func() {
		for {
			message, err := server.Receive(ctx)
			if err != nil || server.Send(ctx, message) != nil {
				return
			}
		}
	}()
	message := make([]byte, benchMessage)
	for b.Loop() {
		if err := client.Send(ctx, message); err != nil {
			b.Fatal(err)
		}
		if _, err := client.Receive(ctx); err != nil {
			b.Fatal(err)
		}
	}
}
