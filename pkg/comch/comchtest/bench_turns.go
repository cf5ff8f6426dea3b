// SPDX-License-Identifier: Apache-2.0

package comchtest

import (
	"testing"

	"github.com/zc-relay/zc-relay/pkg/comch"
)

const turnMessage = 64 // bytes

// BenchTurns measures what a message costs on one thread that sends and receives, a batch of them
// in each turn.
func BenchTurns(b *testing.B, provider comch.Provider, batch int) {
	ctx := b.Context()
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	server, err := provider.Listen(ctx, comch.ServerConfig{Name: "server"})
	must(err)
	client, err := provider.Connect(ctx, comch.ClientConfig{Name: "server"})
	must(err)
	accepted, err := server.Accept(ctx)
	must(err)
	consumer, err := accepted.NewConsumer(ctx,
		comch.ConsumerConfig{Receives: batch, MemorySize: batch * turnMessage})
	must(err)
	producer, err := client.NewProducer(ctx, consumer.ID())
	must(err)
	for i := range batch {
		must(consumer.PostReceive(uint32(i*turnMessage), turnMessage, uint64(i)))
	}
	consumer.Flush()
	message, received := make([]byte, turnMessage), make([]comch.Received, batch)
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
			must(consumer.PostReceive(r.Offset, turnMessage, r.UserData))
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
