// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package comch_test

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

// BenchmarkTurn measures what a message costs on one thread that sends and receives, over the
// emulation: both calls into C for each turn, and the emulated device.
func BenchmarkTurn(b *testing.B) {
	for _, batch := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			comchtest.BenchTurns(b, newProvider(b, libdoca.Config{}), batch)
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
