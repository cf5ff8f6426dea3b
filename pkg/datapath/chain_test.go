package datapath

import (
	"context"
	"net/netip"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// chainRig is a relay lane and a target lane, connected by iWARP, with a client
// in front and a volume behind. The test's own thread drives all of them, so
// what it measures is all that an IO costs.
type chainRig struct {
	t        testing.TB
	workers  [2]*Worker // relay and target
	relay    *RelayLane
	target   *TargetLane
	consumer comch.Consumer
	producer comch.Producer
	request  message
	received []comch.Received
}

// chainOptions selects how data travels.
type chainOptions struct {
	pushed       bool // the relay pushes the data of writes
	volumeMemory bool // reads come straight from the volume's memory
}

func newChainRig(t testing.TB, depth int, options chainOptions) *chainRig {
	t.Helper()
	r := &chainRig{t: t, received: make([]comch.Received, depth)}
	device := openDevice(t)
	for i := range r.workers {
		r.workers[i] = newDrivenWorker(t)
		t.Cleanup(func() {
			for _, d := range r.workers[i].dispatchers {
				check(t, d.queue.Close())
			}
			check(t, r.workers[i].engine.Close())
		})
	}
	region, err := memory.Alloc("client", testExport)
	check(t, err)
	content, err := volume.Open(volume.Spec{Name: "test", BlockSize: 512,
		Backend: volume.MemoryBackend{Size: 8 << 20}})
	check(t, err)
	var relayDomain, targetDomain rdma.ProtectionDomain
	for _, domain := range []*rdma.ProtectionDomain{&relayDomain, &targetDomain} {
		*domain, err = device.NewProtectionDomain()
		check(t, err)
	}
	rights := memory.RemoteRead | memory.RemoteWrite
	export, err := relayDomain.Register(region, memory.LocalWrite|rights)
	check(t, err)
	var volumeMemory rdma.MemoryRegion
	if options.volumeMemory {
		volumeMemory, err = targetDomain.Register(content.Memory(), 0)
		check(t, err)
	}
	client, server := connectEmulated(t)
	relayConsumer := newConsumer(t, server, RelayConsumerConfig(depth))
	r.consumer = newConsumer(t, client, RelayConsumerConfig(depth))
	r.producer = newProducer(t, client, relayConsumer.ID())
	for i := range uint64(depth + spareMessages) {
		check(t, r.consumer.PostReceive(uint32(i)*iomsg.Size, iomsg.Size, i))
	}
	r.consumer.Flush()
	closing := false // after which the target sees the relay's connections end
	failed := func(err error) {
		if !closing {
			t.Error(err)
		}
	}
	r.drive(func(ctx context.Context) (err error) {
		r.relay, err = NewRelayLane(ctx, RelayLaneConfig{
			Worker: r.workers[0], Device: device, Domain: relayDomain, Export: export,
			ExportLength: testExport, ExportAccess: rights, Consumer: relayConsumer,
			Producer: newProducer(t, server, r.consumer.ID()),
			Depth:    depth, BufferSize: testBufferSize, OnFailure: failed,
		})
		return err
	})
	r.drive(func(ctx context.Context) (err error) {
		r.target, err = NewTargetLane(ctx, TargetLaneConfig{
			Worker: r.workers[1], Device: device, Domain: targetDomain, Volume: content,
			VolumeMemory: volumeMemory,
			Export: rdma.RemoteMemory{Key: export.RemoteKey(), Base: export.Base(),
				Length: testExport, Access: rights},
			Depth: depth, BufferSize: testBufferSize, OnFailure: failed,
		})
		return err
	})
	r.connect(device, options)
	t.Cleanup(func() {
		closing = true
		stop := func(ctx context.Context) error {
			check(t, r.relay.Close(ctx))
			return r.target.Close(ctx)
		}
		r.drive(stop)
		check(t, export.Deregister())
		if volumeMemory != nil {
			check(t, volumeMemory.Deregister())
		}
		check(t, relayDomain.Close())
		check(t, targetDomain.Close())
		check(t, region.Close())
		check(t, content.Close(context.Background()))
		check(t, r.producer.Close())
		check(t, r.consumer.Close())
	})
	return r
}

// connect makes both connections between the lanes and starts them.
func (r *chainRig) connect(device rdma.Device, options chainOptions) {
	listener, err := device.Listen(testContext(r.t), netip.AddrPortFrom(loopback, 0))
	check(r.t, err)
	defer func() { check(r.t, listener.Close()) }()
	var staging rdma.RemoteMemory
	if options.pushed {
		staging = r.target.Staging()
	}
	for role := range iomsg.ConnectionRoleCount {
		accepted := make(chan error, 1)
		r.drive(func(ctx context.Context) error {
			go func() {
				request, err := listener.Accept(ctx)
				if err == nil {
					err = r.target.Accept(ctx, request, role, 8)
				}
				accepted <- err
			}()
			err := r.relay.Connect(ctx, ConnectConfig{
				Role: role, Remote: listener.Address(), InboundReads: 8, Staging: staging,
			})
			check(r.t, <-accepted)
			return err
		})
	}
	r.drive(r.target.Start)
	r.drive(r.relay.Start)
}

// drive turns both workers until an action of the control plane returns.
func (r *chainRig) drive(action func(context.Context) error) {
	r.t.Helper()
	driveWorkers(r.t, action, r.workers[:]...)
}

// transfer submits count IOs together and waits for their responses.
func (r *chainRig) transfer(ioType iomsg.Type, count int) {
	for i := range uint64(count) {
		m := iomsg.Message{Type: ioType, UserData: i, RequesterOffset: i * 4096,
			StorageOffset: i * 4096}
		if m.Type != iomsg.Flush {
			m.IOSize = 4096
		}
		iomsg.Encode(r.request[:], &m)
		if err := r.producer.Send(r.request[:], nil); err != nil {
			r.t.Fatal(err)
		}
	}
	r.producer.Flush()
	for completed := 0; completed < count; {
		for _, w := range r.workers {
			w.engine.Progress()
		}
		completed += collectResponses(r.t, r.consumer, r.received)
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// chainPaths are the ways that an IO can take through both lanes.
var chainPaths = []struct {
	name    string
	options chainOptions
	ioType  iomsg.Type
}{
	{"read through staging", chainOptions{}, iomsg.Read},
	{"read of registered memory", chainOptions{volumeMemory: true}, iomsg.Read},
	{"fetched write", chainOptions{}, iomsg.Write},
	{"pushed write", chainOptions{pushed: true}, iomsg.Write},
	{"flush", chainOptions{}, iomsg.Flush},
	{"trim", chainOptions{}, iomsg.Trim},
}

func TestAnIOThroughBothLanesDoesNotAllocate(t *testing.T) {
	const depth = 32
	for _, path := range chainPaths {
		t.Run(path.name, func(t *testing.T) {
			r := newChainRig(t, depth, path.options)
			r.transfer(path.ioType, depth)
			if n := testing.AllocsPerRun(50, func() { r.transfer(path.ioType, depth) }); n != 0 {
				t.Errorf("%v allocations in %d IOs", n, depth)
			}
		})
	}
}

// BenchmarkChain measures what one IO costs the relay's lane, the target's lane,
// and the providers around them, all on one thread.
func BenchmarkChain(b *testing.B) {
	for _, path := range chainPaths {
		b.Run(path.name, func(b *testing.B) {
			const depth = 32
			r := newChainRig(b, depth, path.options)
			b.ReportAllocs()
			b.ResetTimer()
			for left := b.N; left > 0; left -= depth {
				r.transfer(path.ioType, min(left, depth))
			}
		})
	}
}
