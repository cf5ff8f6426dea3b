package rdmatest

import (
	"math/rand/v2"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// The defaults of an end.
const (
	memoryBytes = 4 << 20
	requests    = 32
	readDepth   = 4

	allRights = memory.LocalWrite | memory.RemoteRead | memory.RemoteWrite
)

// end is one side of a connection: a protection domain with registered
// memory, a completion queue and the connection.
type end struct {
	bench  *bench
	device rdma.Device
	domain rdma.ProtectionDomain
	queue  rdma.CompletionQueue
	conn   rdma.Connection // the latest of conns, mostly the only one
	conns  []rdma.Connection
	config rdma.ConnectionConfig
	mem    *mem

	// completions are those collected and not yet awaited, in their order.
	completions []rdma.Completion
	gone        int // how often OpDisconnected came
}

// mem is registered memory.
type mem struct {
	rdma.MemoryRegion
	region *memory.Region
	bytes  []byte
}

// end makes an end that is not connected and will not accept. It is torn down
// with the test.
func (b *bench) end() *end {
	b.Helper()
	return b.endOf(b.device, memoryBytes)
}

// peer makes an end that is not connected and will accept.
func (b *bench) peer() *end {
	b.Helper()
	return b.endOf(b.responder, memoryBytes)
}

// endOf makes an end with that much memory.
func (b *bench) endOf(device rdma.Device, size uint64) *end {
	b.Helper()
	e := &end{bench: b, device: device}
	var err error
	if e.domain, err = device.NewProtectionDomain(); err != nil {
		b.Fatalf("make protection domain: %v", err)
	}
	if e.queue, err = device.NewCompletionQueue(2 * requests); err != nil {
		b.Fatalf("make completion queue: %v", err)
	}
	e.config = rdma.ConnectionConfig{
		Domain: e.domain, Queue: e.queue, Context: rand.Uint64(), SendRequests: requests, ReceiveRequests: requests,
		InboundReads: readDepth, OutboundReads: readDepth,
	}
	b.ends = append(b.ends, e)
	b.Cleanup(e.tearDown)
	e.mem = e.register(size, allRights)
	return e
}

// register makes memory with random content.
func (e *end) register(size uint64, access memory.Access) *mem {
	b := e.bench
	b.Helper()
	region, err := memory.Alloc("rdmatest", size)
	if err != nil {
		b.Fatalf("allocate memory: %v", err)
	}
	r, err := e.domain.Register(region, access)
	if err != nil {
		b.Fatalf("register memory: %v", err)
	}
	m := &mem{MemoryRegion: r, region: region, bytes: region.Bytes()}
	fill(m.bytes)
	b.Cleanup(func() {
		if err := m.Deregister(); err != nil {
			b.Errorf("deregister memory: %v", err)
		}
		if err := region.Close(); err != nil {
			b.Errorf("free memory: %v", err)
		}
	})
	return m
}

func fill(b []byte) {
	var seed [32]byte
	for i := range seed {
		seed[i] = byte(rand.Uint32())
	}
	_, _ = rand.NewChaCha8(seed).Read(b)
}

// tearDown ends the connection, if there is one, and closes the queue and the
// domain, which must be unused then.
func (e *end) tearDown() {
	b := e.bench
	for _, conn := range e.conns {
		conn.Close()
	}
	b.drive("the last completion", func() bool { return e.gone >= len(e.conns) })
	if err := e.queue.Close(); err != nil {
		b.Errorf("close completion queue: %v", err)
	}
	if err := e.domain.Close(); err != nil {
		b.Errorf("close protection domain: %v", err)
	}
	b.ends = remove(b.ends, e)
}

func remove(ends []*end, e *end) []*end {
	for i := range ends {
		if ends[i] == e {
			return append(ends[:i:i], ends[i+1:]...)
		}
	}
	return ends
}

// poll collects completions and checks what holds for each of them.
func (e *end) poll() int {
	b := e.bench
	b.Helper()
	var completions [7]rdma.Completion
	n := e.queue.Poll(completions[:])
	for _, c := range completions[:n] {
		if c.Context != e.config.Context {
			b.Errorf("%v completion has context %#x, not %#x", c.Opcode, c.Context, e.config.Context)
		}
		if e.gone == len(e.conns) && e.gone > 0 {
			b.Errorf("%v completion %#x after the last OpDisconnected", c.Opcode, c.ID)
		}
		if c.Opcode == rdma.OpDisconnected {
			e.gone++
			continue
		}
		e.completions = append(e.completions, c)
	}
	return n
}
