//go:build cgo

package doca_test

import (
	"fmt"
	"testing"

	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/comchtest"
)

func BenchmarkProvider(b *testing.B) {
	comchtest.Bench(b, comchtest.Config{Provider: newProvider(b, libdoca.Config{})})
}

const benchMessage = 64 // bytes

// BenchmarkTurn measures what a message costs on one thread that sends and receives, over the
// emulation: both calls into C for each turn, and the emulated device.
func BenchmarkTurn(b *testing.B) {
	for _, batch := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			benchTurns(b, newProvider(b, libdoca.Config{}), batch)
		})
	}
	b.Run("idle", func(b *testing.B) {
		provider := newProvider(b, libdoca.Config{})
		ctx := b.Context()
		server := must[comch.Server](b)(provider.Listen(ctx, comch.ServerConfig{Name: "server"}))
		client := must[comch.Connection](b)(provider.Connect(ctx,
			comch.ClientConfig{Name: "server"}))
		consumer := must[comch.Consumer](b)(client.NewConsumer(ctx,
			comch.ConsumerConfig{Receives: 32, MemorySize: 32}))
		received := make([]comch.Received, 32)
		for b.Loop() {
			consumer.Poll(received)
		}
		if err := consumer.Close(); err != nil {
			b.Error(err)
		}
		client.Abort()
		_ = server.Close()
	})
}

// benchTurns sends and receives messages, a batch in each turn.
func benchTurns(b *testing.B, provider comch.Provider, batch int) {
	ctx := b.Context()
	server := must[comch.Server](b)(provider.Listen(ctx, comch.ServerConfig{Name: "server"}))
	client := must[comch.Connection](b)(provider.Connect(ctx,
		comch.ClientConfig{Name: "server"}))
	accepted := must[comch.Connection](b)(server.Accept(ctx))
	consumer := must[comch.Consumer](b)(accepted.NewConsumer(ctx,
		comch.ConsumerConfig{Receives: batch, MemorySize: batch * benchMessage}))
	producer := must[comch.Producer](b)(client.NewProducer(ctx, consumer.ID()))
	for i := range batch {
		err := consumer.PostReceive(uint32(i*benchMessage), benchMessage, uint64(i))
		if err != nil {
			b.Fatal(err)
		}
	}
	consumer.Flush()
	message, received := make([]byte, benchMessage), make([]comch.Received, batch)
	late, _ := producer.(comch.LateProducer)
	b.ResetTimer()
	for done := 0; done < b.N; {
		for range batch {
			if producer.Send(message, nil) != nil {
				break
			}
		}
		producer.Flush()
		n := consumer.Poll(received)
		for _, r := range received[:n] {
			if err := consumer.PostReceive(r.Offset, benchMessage, r.UserData); err != nil {
				b.Fatal(err)
			}
		}
		consumer.Flush()
		if late != nil {
			late.Poll()
		}
		done += n
	}
	b.StopTimer()
	client.Abort()
	<-accepted.Done()
	for _, c := range []interface{ Close() error }{producer, consumer, client, accepted, server} {
		if err := c.Close(); err != nil {
			b.Error(err)
		}
	}
}
