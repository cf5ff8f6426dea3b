// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/rdma/shm"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// chainRig is a relay lane and a target lane, with a client in front and a volume
// behind. The test's own thread drives all of them, so what it measures is all
// that an IO costs.
type chainRig struct {
	*session
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
	shared       bool // the RDMA provider is shm instead of iwarp
	large        bool // IOs have 128 KiB instead of 4 KiB
}

// ioSize returns the size of each IO.
func (o chainOptions) ioSize() uint32 {
	if o.large {
		return 128 << 10
	}
	return 4096
}

// sharedWorkers are a worker of a relay and one of a target, each with its RDMA
// device.
type sharedWorkers struct {
	t       testing.TB
	workers [2]*Worker
	devices [2]rdma.Device
}

func newSharedWorkers(t testing.TB, provider rdma.Provider) *sharedWorkers {
	t.Helper()
	s := &sharedWorkers{t: t}
	for i := range s.workers {
		s.devices[i] = openDeviceOf(t, provider)
		worker := newDrivenWorker(t)
		s.workers[i] = worker
		t.Cleanup(func() {
			for _, d := range worker.dispatchers {
				check(t, d.queue.Close())
			}
			check(t, worker.engine.Close())
		})
	}
	return s
}

func newChainRig(t testing.TB, depth int, options chainOptions) *chainRig {
	t.Helper()
	provider := iwarp.New(iwarp.Options{})
	if options.shared {
		provider = shm.New(shm.Options{})
	}
	return newSharedWorkers(t, provider).newSession(options).newChain(depth)
}

// session is what the chains of a session share.
type session struct {
	*sharedWorkers
	options      chainOptions
	domains      [2]rdma.ProtectionDomain
	export       rdma.MemoryRegion
	volume       volume.Volume
	volumeMemory rdma.MemoryRegion
}

// exportRights are the rights to a client's memory.
const exportRights = memory.RemoteRead | memory.RemoteWrite

func (w *sharedWorkers) newSession(options chainOptions) *session {
	t := w.t
	t.Helper()
	s := &session{sharedWorkers: w, options: options}
	region, err := memory.Alloc("client", testExport)
	check(t, err)
	// The relay copies from and to memory that its owner can take away at any time.
	descriptor, err := unix.FcntlInt(uintptr(region.Descriptor()), unix.F_DUPFD_CLOEXEC, 0)
	check(t, err)
	imported, err := memory.Import(descriptor, region.Base(), testExport, testExport,
		memory.PCIRead|memory.PCIWrite)
	check(t, err)
	s.volume, err = volume.Open(volume.Spec{Name: "test", BlockSize: 512,
		Backend: volume.MemoryBackend{Size: 8 << 20}})
	check(t, err)
	for i := range s.domains {
		s.domains[i], err = s.devices[i].NewProtectionDomain()
		check(t, err)
	}
	s.export, err = s.domains[0].Register(imported, memory.LocalWrite|exportRights)
	check(t, err)
	if options.volumeMemory {
		s.volumeMemory, err = s.domains[1].Register(s.volume.Memory(), 0)
		check(t, err)
	}
	t.Cleanup(func() {
		check(t, s.export.Deregister())
		if s.volumeMemory != nil {
			check(t, s.volumeMemory.Deregister())
		}
		for _, domain := range s.domains {
			check(t, domain.Close())
		}
		check(t, imported.Close())
		check(t, region.Close())
		check(t, s.volume.Close(context.Background()))
	})
	return s
}

// newChain adds a queue.
func (s *session) newChain(depth int) *chainRig {
	t := s.t
	t.Helper()
	r := &chainRig{session: s, received: make([]comch.Received, depth)}
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
			Worker: s.workers[0], Device: s.devices[0], Domain: s.domains[0], Export: s.export,
			ExportLength: testExport, ExportAccess: exportRights, Consumer: relayConsumer,
			Producer: newProducer(t, server, r.consumer.ID()),
			Depth:    depth, BufferSize: max(testBufferSize, s.options.ioSize()), OnFailure: failed,
		})
		return err
	})
	r.drive(func(ctx context.Context) (err error) {
		r.target, err = NewTargetLane(ctx, TargetLaneConfig{
			Worker: s.workers[1], Device: s.devices[1], Domain: s.domains[1], Volume: s.volume,
			VolumeMemory: s.volumeMemory,
			Export: rdma.RemoteMemory{Key: s.export.RemoteKey(), Base: s.export.Base(),
				Length: testExport, Access: exportRights},
			Depth: depth, BufferSize: max(testBufferSize, s.options.ioSize()), OnFailure: failed,
		})
		return err
	})
	r.connect()
	t.Cleanup(func() {
		closing = true
		r.drive(func(ctx context.Context) error {
			check(t, r.relay.Close(ctx))
			return r.target.Close(ctx)
		})
		check(t, r.producer.Close())
		check(t, r.consumer.Close())
	})
	return r
}

// connect makes both connections between the lanes and starts them.
func (r *chainRig) connect() {
	listener, err := r.devices[1].Listen(testContext(r.t), netip.AddrPortFrom(loopback, 0))
	check(r.t, err)
	defer func() { check(r.t, listener.Close()) }()
	var staging rdma.RemoteMemory
	if r.options.pushed {
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
	r.submit(ioType, count)
	for completed := 0; completed < count; {
		work := 0
		for _, w := range r.workers {
			work += w.engine.Progress()
		}
		n := r.collect()
		completed += n
		if work+n == 0 {
			// The data may have to come from a kernel thread that is waiting for this core.
			progress.Yield()
		}
	}
}

// submit submits count IOs together.
func (r *chainRig) submit(ioType iomsg.Type, count int) {
	size := r.options.ioSize()
	for i := range uint64(count) {
		offset := i * uint64(size) % testExport
		m := iomsg.Message{Type: ioType, UserData: i, RequesterOffset: offset,
			StorageOffset: offset}
		if m.Type != iomsg.Flush {
			m.IOSize = size
		}
		iomsg.Encode(r.request[:], &m)
		if err := r.producer.Send(r.request[:], nil); err != nil {
			r.t.Fatal(err)
		}
	}
	r.producer.Flush()
}

// collect returns how many IOs have completed since the last call.
func (r *chainRig) collect() int { return collectResponses(r.t, r.consumer, r.received) }

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
	{"read of shared memory", chainOptions{volumeMemory: true, shared: true}, iomsg.Read},
	{"write to shared memory", chainOptions{pushed: true, shared: true}, iomsg.Write},
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

// A response that waits for a receive of the client is sent when there is one, also if the client
// asks for nothing more.
func TestAnIdleLaneSendsWhatHasWaitedForAReceive(t *testing.T) {
	r := newChainRig(t, 2, chainOptions{shared: true, volumeMemory: true})
	turns := func() {
		for range 20 {
			for _, w := range r.workers {
				w.engine.Progress()
			}
		}
	}
	var used []comch.Received
	for len(used) < RelayConsumerConfig(2).Receives { // all receives of the client
		r.submit(iomsg.Read, 1)
		testkit.Eventually(t, "a response", func() bool {
			turns()
			n := r.consumer.Poll(r.received[:1])
			used = append(used, r.received[:n]...)
			return n == 1
		})
	}
	r.submit(iomsg.Read, 1)
	r.workers[0].engine.Progress() // forwards the request
	r.workers[0].engine.Progress() // finds nothing to do
	if !r.relay.watch.IsIdle() {
		t.Error("the lane is polled although it waits for the target")
	}
	testkit.Eventually(t, "a response waits for a receive", func() bool {
		turns()
		return r.relay.outbox.Len() == 1
	})
	for _, c := range used {
		check(t, r.consumer.PostReceive(c.Offset, iomsg.Size, c.UserData))
	}
	r.consumer.Flush()
	testkit.Eventually(t, "the response", func() bool {
		turns()
		return r.collect() == 1
	})
}
