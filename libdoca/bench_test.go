// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package libdoca_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/libdoca/internal/docatest"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
)

const messageLength = 64

// BenchmarkFastPath sends messages of 64 bytes in batches, all on one thread. One operation is one
// message: two completions, a send submitted, and a receive posted again.
func BenchmarkFastPath(b *testing.B) {
	for _, batch := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			p := newPair(b, libdoca.Config{})
			c, q := newConsumer(b, p.server, batch), newProducer(b, p.client, batch)
			ok(b, call("doca_comch_consumer_task_post_recv_set_conf", c.object, docatest.Count(),
				docatest.Callback(docatest.Failed), batch))
			ok(b, call("doca_comch_producer_task_send_set_conf", q.object, docatest.Count(),
				docatest.Callback(docatest.Failed), batch))
			c.memory.grow(batch)
			q.memory.grow(batch)
			c.start()
			ok(b, call("doca_ctx_start", q.ctx))
			var sends, receives, sources, bufs []P
			for i := range batch {
				buf := c.memory.buf(messageLength*i, messageLength, 0)
				receives = append(receives,
					create(b, "doca_comch_consumer_task_post_recv_alloc_init", c.object, buf))
				message := string(make([]byte, messageLength))
				send, source := q.task(messageLength*i, message, "", c.id)
				sends, sources = append(sends, send), append(sources, source)
				bufs = append(bufs, buf)
			}
			rounds := (b.N + batch - 1) / batch
			if !docatest.Loop(q.pe, c.pe, sends, receives, bufs, 1) {
				b.Fatal("a submission failed")
			}
			b.ResetTimer()
			if !docatest.Loop(q.pe, c.pe, sends, receives, bufs, rounds) {
				b.Fatal("a submission failed")
			}
			b.StopTimer()
			stop(b, q.ctx, q.pe, sends...)
			stop(b, c.ctx, c.pe, receives...)
			release(b, sources...)
			release(b, bufs...)
			q.destroy()
			c.destroy()
			p.close()
		})
	}
}

// grow gives the memory an inventory that holds more bufs.
func (m *memory) grow(bufs int) {
	ok(m.t, call("doca_buf_inventory_destroy", m.inventory))
	m.inventory = create(m.t, "doca_buf_inventory_create", bufs)
	ok(m.t, call("doca_buf_inventory_start", m.inventory))
}

// BenchmarkEmulatedProvider does what BenchmarkFastPath does without the library.
func BenchmarkEmulatedProvider(b *testing.B) {
	for _, batch := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			benchmarkEmulated(b, batch)
		})
	}
}

func benchmarkEmulated(b *testing.B, batch int) {
	ctx := context.Background()
	provider := emulated.New(emulated.Options{Directory: b.TempDir()})
	server, err := provider.Listen(ctx, comch.ServerConfig{Device: dpuDevice,
		Representor: "b1:00.0", Name: channelName})
	if err != nil {
		b.Fatal(err)
	}
	defer server.Close()
	client, err := provider.Connect(ctx, comch.ClientConfig{Device: "b1:00.0", Name: channelName})
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	peer, err := server.Accept(ctx)
	if err != nil {
		b.Fatal(err)
	}
	consumer, err := peer.NewConsumer(ctx, comch.ConsumerConfig{Receives: batch,
		MemorySize: batch * messageLength})
	if err != nil {
		b.Fatal(err)
	}
	defer consumer.Close()
	producer, err := client.NewProducer(ctx, consumer.ID())
	if err != nil {
		b.Fatal(err)
	}
	defer producer.Close()
	message, received := make([]byte, messageLength), make([]comch.Received, 32)
	b.ResetTimer()
	for n := 0; n < b.N; n += batch {
		for i := range batch {
			_ = consumer.PostReceive(uint32(i*messageLength), messageLength, 0)
		}
		consumer.Flush()
		for range batch {
			if err := producer.Send(message, nil); err != nil {
				b.Fatal(err)
			}
		}
		producer.Flush()
		for done := 0; done < batch; {
			done += consumer.Poll(received)
		}
	}
}

// BenchmarkEmptyProgress calls progress when there is nothing to do.
func BenchmarkEmptyProgress(b *testing.B) {
	p := newPair(b, libdoca.Config{})
	c := newConsumer(b, p.server, 8)
	c.start()
	receive, buf := c.post(0, messageLength)
	drain(c.pe)
	b.ResetTimer()
	if n := docatest.LoopEmpty(c.pe, b.N); n != 0 {
		b.Fatalf("progress did %d things", n)
	}
	b.StopTimer()
	stop(b, c.ctx, c.pe, receive)
	release(b, buf)
	c.destroy()
	p.close()
}
