// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// BenchmarkRelayForward measures what one IO costs the relay: the request from
// Comch to RDMA and the response back, with slots, checks, and counters. The
// clock runs only while the relay's worker runs. RDMA is a fake that responds at
// once, so the transport's cost is left out.
func BenchmarkRelayForward(b *testing.B) {
	for name, depth := range map[string]int{"depth=1": 1, "depth=32": 32, "depth=128": 128} {
		b.Run(name, func(b *testing.B) { benchmarkRelayForward(b, depth) })
	}
}

func benchmarkRelayForward(b *testing.B, depth int) {
	measureForward(b, newForwardRig(b, depth), depth)
}

// measureForward measures the relay's share of reads at the given depth.
func measureForward(b *testing.B, rig *forwardRig, depth int) {
	b.ReportAllocs()
	b.ResetTimer()
	relayNs := int64(0)
	for left := b.N; left > 0; {
		batch := min(left, depth)
		rig.submit(batch)
		for completed := 0; completed < batch; completed += rig.collect() {
			begin := nanotime()
			rig.worker.engine.Progress()
			relayNs += nanotime() - begin
		}
		left -= batch
	}
	b.StopTimer()
	b.ReportMetric(float64(relayNs)/float64(b.N), "relay-ns/IO")
}

// forwardRig is a relay lane between a client and a fake target, all driven by
// one thread.
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
	r.worker = newDrivenWorker(b)
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
			Worker: r.worker, Device: device, Domain: domain, ExportLength: testExport,
			ExportAccess: memory.RemoteRead | memory.RemoteWrite,
			Consumer:     relayConsumer, Producer: relayProducer, Depth: depth,
			BufferSize: testBufferSize,
			OnFailure:  func(err error) { b.Error(err) },
		})
		return err
	})
	for role := range iomsg.ConnectionRoleCount {
		r.drive(func(ctx context.Context) error {
			return r.lane.Connect(ctx, ConnectConfig{Role: role})
		})
	}
	r.drive(r.lane.Start)
	b.Cleanup(r.close)
	return r
}

// newDrivenWorker returns a worker without a thread: the test drives its engine.
func newDrivenWorker(t testing.TB) *Worker {
	t.Helper()
	engine, err := progress.NewEngine(progress.Policy{})
	if err != nil {
		t.Fatal(err)
	}
	return &Worker{cpu: NoCPU, engine: engine, dispatchers: map[rdma.Device]*dispatcher{},
		ended: make(chan struct{})}
}

// drive turns the worker until an action of the control plane returns.
func (r *forwardRig) drive(action func(context.Context) error) {
	r.b.Helper()
	driveWorkers(r.b, action, r.worker)
}

// driveWorkers turns workers until an action of the control plane returns.
func driveWorkers(t testing.TB, action func(context.Context) error, workers ...*Worker) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- action(ctx) }()
	for {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			return
		default:
			for _, w := range workers {
				w.engine.Progress()
			}
			time.Sleep(time.Microsecond) // spinning would keep a single processor from the action
		}
	}
}

// submit sends count reads of the client.
func (r *forwardRig) submit(count int) {
	for range count {
		r.next++
		iomsg.Encode(r.request[:], &iomsg.Message{Type: iomsg.Read, UserData: r.next, IOSize: 4096,
			StorageOffset: r.next << 12})
		if err := r.producer.Send(r.request[:], nil); err != nil {
			r.b.Fatal(err)
		}
	}
	r.producer.Flush()
}

// collect polls the client's responses and returns their number.
func (r *forwardRig) collect() int { return collectResponses(r.b, r.consumer, r.received) }

// collectResponses polls a client's consumer for responses, which must be successful, posts their
// receives again, and returns their number.
func collectResponses(t testing.TB, consumer comch.Consumer, received []comch.Received) int {
	n := consumer.Poll(received)
	for i := range received[:n] {
		r := &received[i]
		var m iomsg.Message
		iomsg.Decode(consumer.Memory()[r.Offset:][:iomsg.Size], &m)
		if m.Type != iomsg.Result || m.Result != 0 {
			t.Fatalf("a response has type %d and result %v", m.Type, m.Result)
		}
		if err := consumer.PostReceive(r.Offset, iomsg.Size, r.UserData); err != nil {
			t.Fatal(err)
		}
	}
	consumer.Flush()
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

// connectEmulated returns both ends of a Comch connection in this process.
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
		client, err = provider.Connect(ctx, comch.ClientConfig{Device: emulated.DefaultHostDevice,
			Name: "bench"})
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
			case <-time.After(testkit.Patience):
				b.Error("the connection does not end")
			}
			_ = c.Close() // it has ended already
		}
	})
	return client, server
}

// loopDevice is an RDMA device in memory for one relay lane. Its target responds
// to everything before the completion queue is polled next.
type loopDevice struct {
	rdma.Device // what a relay lane does not use
	queue       *loopQueue
	memory      []byte // of the only region
	connections [iomsg.ConnectionRoleCount]*loopConnection
}

func newLoopDevice() *loopDevice {
	return &loopDevice{queue: &loopQueue{completions: make([]rdma.Completion, 0, 4096)}}
}

func (d *loopDevice) Capabilities() rdma.Capabilities { return rdma.Capabilities{} }

func (d *loopDevice) NewProtectionDomain() (rdma.ProtectionDomain, error) {
	return loopDomain{d}, nil
}

func (d *loopDevice) NewCompletionQueue(int) (rdma.CompletionQueue, error) { return d.queue, nil }

func (d *loopDevice) Connect(_ context.Context, _ netip.AddrPort,
	config rdma.ConnectionConfig) (rdma.Connection, error) {
	c := &loopConnection{
		device: d, context: config.Context,
		receives: make([]rdma.ReceiveRequest, 0, config.ReceiveRequests),
	}
	d.connections[iomsg.ConnectionRole(config.Context%uint64(iomsg.ConnectionRoleCount))] = c
	return c, c.PostReceive(config.Receives)
}

type loopDomain struct{ device *loopDevice }

func (d loopDomain) Register(region *memory.Region, _ memory.Access) (rdma.MemoryRegion, error) {
	if d.device.memory != nil {
		return nil, status.NotSupported
	}
	d.device.memory = region.Bytes()
	return loopRegion{}, nil
}

func (d loopDomain) Close() error { return nil }

type loopRegion struct{ rdma.MemoryRegion }

func (loopRegion) LocalKey() uint32 { return 1 }

func (loopRegion) Base() uint64 { return 0 }

func (loopRegion) Deregister() error { return nil }

// loopQueue returns completions in the order in which they occurred.
type loopQueue struct {
	rdma.CompletionQueue // a benchmark does not sleep
	completions          []rdma.Completion
	head                 int
	withheld             []rdma.Completion // of Sends, while withhold is set
	withhold             bool
}

// deliver releases the withheld completions of Sends.
func (q *loopQueue) deliver() {
	q.completions = append(q.completions, q.withheld...)
	q.withheld, q.withhold = nil, false
}

func (q *loopQueue) Descriptor() int { return -1 }

func (q *loopQueue) Poll(completions []rdma.Completion) int {
	n := copy(completions, q.completions[q.head:])
	if q.head += n; q.head == len(q.completions) {
		q.completions, q.head = q.completions[:0], 0
	}
	return n
}

type loopConnection struct {
	rdma.Connection
	device   *loopDevice
	context  uint64
	receives []rdma.ReceiveRequest // posted, the oldest first
	taken    int                   // how many of them have been used
}

func (*loopConnection) Parameters() rdma.Parameters { return rdma.Parameters{} }

func (c *loopConnection) PostReceive(requests []rdma.ReceiveRequest) error {
	if c.taken > 0 && len(c.receives)+len(requests) > cap(c.receives) {
		c.receives, c.taken = c.receives[:copy(c.receives, c.receives[c.taken:])], 0
	}
	if len(c.receives)+len(requests) > cap(c.receives) {
		return status.Full
	}
	c.receives = append(c.receives, requests...)
	return nil
}

func (c *loopConnection) PostSend(requests []rdma.SendRequest) error {
	for i := range requests {
		r := &requests[i]
		if err := c.respond(c.device.bytes(r.Local)); err != nil {
			return err
		}
		if !r.Silent {
			c.complete(rdma.Completion{ID: r.ID, Opcode: rdma.OpSend})
		}
	}
	return nil
}

func (d *loopDevice) bytes(s rdma.Segment) []byte { return d.memory[s.Address:][:s.Length] }

// respond plays the target: it responds to each message of a Send.
func (c *loopConnection) respond(requests []byte) error {
	if c.taken == len(c.receives) {
		return status.Again
	}
	receive := &c.receives[c.taken]
	c.taken++
	responses := c.device.bytes(receive.Local)[:len(requests)]
	copy(responses, requests)
	for rest := responses; len(rest) > 0; rest = rest[iomsg.Size:] {
		var m iomsg.Message
		iomsg.Decode(rest, &m)
		if m.Type.IsRequest() {
			iomsg.TurnIntoResult(rest, status.Success)
		}
	}
	c.complete(rdma.Completion{ID: receive.ID, Opcode: rdma.OpReceive,
		Length: uint32(len(responses))})
	return nil
}

func (c *loopConnection) complete(completion rdma.Completion) {
	completion.Context = c.context
	q := c.device.queue
	if q.withhold && completion.Opcode == rdma.OpSend {
		q.withheld = append(q.withheld, completion)
		return
	}
	q.completions = append(q.completions, completion)
}

func (c *loopConnection) Flush() {}

func (c *loopConnection) Err() error { return nil }

func (c *loopConnection) Close() { c.complete(rdma.Completion{Opcode: rdma.OpDisconnected}) }
