package datapath

import (
	"context"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// BenchmarkRelayForward measures what one IO costs the relay: the request from
// Comch to RDMA and the answer back, slots, checks and counters included. The
// clock runs while the relay's worker does, not while the client does; RDMA is
// a double that answers at once, so what a transport costs is left out.
func BenchmarkRelayForward(b *testing.B) {
	for name, depth := range map[string]int{"depth=1": 1, "depth=32": 32, "depth=128": 128} {
		b.Run(name, func(b *testing.B) { benchmarkRelayForward(b, depth) })
	}
}

func benchmarkRelayForward(b *testing.B, depth int) {
	rig := newForwardRig(b, depth)
	b.ReportAllocs()
	b.ResetTimer()
	relayNs := int64(0)
	for left := b.N; left > 0; {
		batch := min(left, depth)
		rig.submit(batch)
		for answered := 0; answered < batch; answered += rig.collect() {
			begin := nanotime()
			rig.worker.engine.Progress()
			relayNs += nanotime() - begin
		}
		left -= batch
	}
	b.StopTimer()
	b.ReportMetric(float64(relayNs)/float64(b.N), "relay-ns/IO")
}

// forwardRig is a relay lane between a client and a target that are driven by
// the same thread.
type forwardRig struct {
	b        testing.TB
	worker   *Worker
	lane     *RelayLane
	queue    *loopQueue
	producer comch.Producer // of the client
	consumer comch.Consumer
	request  message
	received []comch.Received
	next     uint64
}

func newForwardRig(b testing.TB, depth int) *forwardRig {
	r := &forwardRig{b: b, received: make([]comch.Received, comchBatch)}
	device := newLoopDevice()
	r.queue = device.queue
	r.startWorker()
	client, server := connectEmulated(b)
	relayConsumer := newConsumer(b, server, RelayConsumerConfig(depth))
	r.consumer = newConsumer(b, client, RelayConsumerConfig(depth))
	r.producer = newProducer(b, client, relayConsumer.ID())
	relayProducer := newProducer(b, server, r.consumer.ID())
	for i := range uint64(depth + spareMessages) {
		if err := r.consumer.PostReceive(uint32(i)*iomsg.Size, iomsg.Size, i); err != nil {
			b.Fatal(err)
		}
	}
	r.consumer.Flush()
	domain, _ := device.NewProtectionDomain()
	r.drive(func(ctx context.Context) (err error) {
		r.lane, err = NewRelayLane(ctx, RelayLaneConfig{
			Worker: r.worker, Device: device, Domain: domain, ExportLength: testExport, ExportAccess: memory.RemoteRead | memory.RemoteWrite,
			Consumer: relayConsumer, Producer: relayProducer, Depth: depth, BufferSize: testBufferSize,
			OnFailure: func(err error) { b.Error(err) },
		})
		return err
	})
	for _, data := range []bool{false, true} {
		r.drive(func(ctx context.Context) error {
			return r.lane.Connect(ctx, LaneConnection{Data: data})
		})
	}
	r.drive(r.lane.Start)
	b.Cleanup(r.close)
	return r
}

// startWorker makes a worker whose engine the benchmark drives itself.
func (r *forwardRig) startWorker() {
	engine, err := progress.NewEngine(progress.Policy{})
	if err != nil {
		r.b.Fatal(err)
	}
	r.worker = &Worker{cpu: NoCPU, engine: engine, dispatchers: map[rdma.Device]*dispatcher{}, stopped: make(chan struct{})}
}

// drive turns the worker until something that the control plane does is done.
func (r *forwardRig) drive(action func(context.Context) error) {
	r.b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- action(ctx) }()
	for {
		select {
		case err := <-done:
			if err != nil {
				r.b.Fatal(err)
			}
			return
		default:
			r.worker.engine.Progress()
		}
	}
}

// submit sends reads of the client on their way.
func (r *forwardRig) submit(count int) {
	for range count {
		r.next++
		iomsg.Encode(r.request[:], &iomsg.Message{Type: iomsg.Read, UserData: r.next, IOSize: 4096, StorageOffset: r.next << 12})
		if err := r.producer.Send(r.request[:], nil); err != nil {
			r.b.Fatal(err)
		}
	}
	r.producer.Flush()
}

// collect takes the answers that have come back and returns their number.
func (r *forwardRig) collect() int {
	n := r.consumer.Poll(r.received)
	for i := range r.received[:n] {
		received := &r.received[i]
		var m iomsg.Message
		iomsg.Decode(r.consumer.Memory()[received.Offset:][:iomsg.Size], &m)
		if m.Type != iomsg.Result || m.Result != 0 {
			r.b.Fatalf("an answer has type %d and result %v", m.Type, m.Result)
		}
		if err := r.consumer.PostReceive(received.Offset, iomsg.Size, received.UserData); err != nil {
			r.b.Fatal(err)
		}
	}
	r.consumer.Flush()
	return n
}

func (r *forwardRig) close() {
	r.drive(r.lane.Close)
	for _, err := range []error{r.producer.Close(), r.consumer.Close(), r.worker.engine.Close()} {
		if err != nil {
			r.b.Error(err)
		}
	}
}

func newConsumer(b testing.TB, c comch.Connection, config comch.ConsumerConfig) comch.Consumer {
	b.Helper()
	consumer, err := c.NewConsumer(testContext(b), config)
	if err != nil {
		b.Fatal(err)
	}
	return consumer
}

func newProducer(b testing.TB, c comch.Connection, to comch.ConsumerID) comch.Producer {
	b.Helper()
	producer, err := c.NewProducer(testContext(b), to)
	if err != nil {
		b.Fatal(err)
	}
	return producer
}

// connectEmulated makes both ends of a Comch connection in this process.
func connectEmulated(b testing.TB) (client, server comch.Connection) {
	b.Helper()
	ctx := testContext(b)
	provider := emulated.New(emulated.Options{Directory: b.TempDir()})
	listener, err := provider.Listen(ctx, comch.ServerConfig{
		Device: emulated.DefaultDevice, Representor: emulated.DefaultRepresentor, Name: "bench",
	})
	if err != nil {
		b.Fatal(err)
	}
	connected := make(chan error, 1)
	go func() {
		client, err = provider.Connect(ctx, comch.ClientConfig{Device: emulated.DefaultHostDevice, Name: "bench"})
		connected <- err
	}()
	server, acceptErr := listener.Accept(ctx)
	for _, err := range []error{<-connected, acceptErr, listener.Close()} {
		if err != nil {
			b.Fatal(err)
		}
	}
	b.Cleanup(func() {
		for _, c := range []comch.Connection{client, server} {
			c.Abort()
			select {
			case <-c.Done():
			case <-time.After(testTimeout):
				b.Error("the connection does not end")
			}
			_ = c.Close() // it has ended already
		}
	})
	return client, server
}
