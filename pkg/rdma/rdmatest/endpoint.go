// SPDX-License-Identifier: Apache-2.0

package rdmatest

import (
	"math/rand/v2"
	"sync"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// Default sizes of an endpoint.
const (
	memoryBytes = 32 << 10
	requests    = 32
	readDepth   = 4

	allRights = memory.LocalWrite | memory.RemoteRead | memory.RemoteWrite
)

// endpoint is one side of a connection: a protection domain with registered memory, a completion
// queue, and the connection.
type endpoint struct {
	bench  *bench
	device rdma.Device
	domain rdma.ProtectionDomain
	queue  rdma.CompletionQueue
	conn   rdma.Connection // the latest of conns, usually the only one
	conns  []rdma.Connection
	config rdma.ConnectionConfig
	mem    *mem

	// completions have been polled, in this order, and not awaited.
	completions []rdma.Completion
	disconnects int // completions with OpDisconnected
}

// mem is registered memory.
type mem struct {
	rdma.MemoryRegion
	region *memory.Region
	bytes  []byte
}

// newInitiator returns an endpoint that can connect. Its teardown is part of the test's cleanup.
func (b *bench) newInitiator() *endpoint {
	b.Helper()
	return b.newEndpoint(b.device, memoryBytes)
}

// newResponder returns an endpoint that can accept a connection.
func (b *bench) newResponder() *endpoint {
	b.Helper()
	return b.newEndpoint(b.responder, memoryBytes)
}

// newEndpoint returns an endpoint with size bytes of memory.
func (b *bench) newEndpoint(device rdma.Device, size uint64) *endpoint {
	b.Helper()
	e := &endpoint{bench: b, device: device}
	var err error
	if e.domain, err = device.NewProtectionDomain(); err != nil {
		b.Fatalf("make protection domain: %v", err)
	}
	if e.queue, err = device.NewCompletionQueue(2 * requests); err != nil {
		b.Fatalf("make completion queue: %v", err)
	}
	e.config = rdma.ConnectionConfig{
		Domain: e.domain, Queue: e.queue, Context: b.random.Uint64(), SendRequests: requests,
		ReceiveRequests: requests,
		InboundReads:    readDepth, OutboundReads: readDepth,
	}
	b.endpoints = append(b.endpoints, e)
	b.Cleanup(e.tearDown)
	e.mem = e.register(size, allRights)
	if lend := b.config.Lend; lend != LendNothing {
		e.config.Lent = []rdma.LentMemory{{Region: e.mem.MemoryRegion,
			Writable: lend == LendForWriting}}
	}
	return e
}

// register allocates and registers memory with content of its own.
func (e *endpoint) register(size uint64, access memory.Access) *mem {
	b := e.bench
	b.Helper()
	allocate := memory.Alloc
	if b.config.Lend == LendForReading {
		allocate = memory.AllocReadOnly
	}
	region, err := allocate("rdmatest", size)
	if err != nil {
		b.Fatalf("allocate memory: %v", err)
	}
	r, err := e.domain.Register(region, access)
	if err != nil {
		b.Fatalf("register memory: %v", err)
	}
	m := &mem{MemoryRegion: r, region: region, bytes: region.Bytes()}
	b.fill(m.bytes)
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

// fill fills memory with content that it has not had before: another part of content.
func (b *bench) fill(memory []byte) { copy(memory, content()[b.random.IntN(mostBytes):]) }

// mostBytes is the size of the largest memory.
const mostBytes = 4 << 20

// content returns random bytes. To draw them anew for each memory takes longer than most tests.
var content = sync.OnceValue(func() []byte {
	bytes := make([]byte, 2*mostBytes)
	_, _ = rand.NewChaCha8([32]byte{}).Read(bytes)
	return bytes
})

// tearDown closes the connections, and then the queue and the domain, which nothing may use any
// more.
func (e *endpoint) tearDown() {
	b := e.bench
	for _, conn := range e.conns {
		conn.Close()
	}
	b.drive("the last completion", func() bool { return e.disconnects >= len(e.conns) })
	if err := e.queue.Close(); err != nil {
		b.Errorf("close completion queue: %v", err)
	}
	if err := e.domain.Close(); err != nil {
		b.Errorf("close protection domain: %v", err)
	}
	b.endpoints = remove(b.endpoints, e)
}

func remove(endpoints []*endpoint, e *endpoint) []*endpoint {
	for i := range endpoints {
		if endpoints[i] == e {
			return append(endpoints[:i:i], endpoints[i+1:]...)
		}
	}
	return endpoints
}

// poll collects completions and checks what must hold for each of them.
func (e *endpoint) poll() int {
	b := e.bench
	b.Helper()
	var completions [7]rdma.Completion
	n := e.queue.Poll(completions[:])
	for _, c := range completions[:n] {
		if c.Context != e.config.Context {
			b.Errorf("%v completion has context %#x, want %#x", c.Opcode, c.Context,
				e.config.Context)
		}
		if e.disconnects == len(e.conns) && e.disconnects > 0 {
			b.Errorf("%v completion %#x after the last OpDisconnected", c.Opcode, c.ID)
		}
		if c.Opcode == rdma.OpDisconnected {
			e.disconnects++
			continue
		}
		e.completions = append(e.completions, c)
	}
	return n
}

// segment returns a range of the endpoint's memory.
func (e *endpoint) segment(offset, length int) rdma.Segment {
	return e.mem.segment(offset, length)
}

func (m *mem) segment(offset, length int) rdma.Segment {
	return rdma.Segment{Key: m.LocalKey(), Address: m.Base() + uint64(offset),
		Length: uint32(length)}
}

// remote returns r with the given place in m as its remote memory.
func (m *mem) remote(r rdma.SendRequest, offset int) rdma.SendRequest {
	r.RemoteAddress, r.RemoteKey = m.Base()+uint64(offset), m.RemoteKey()
	return r
}

func (e *endpoint) sendRequest(id uint64, offset, length int) rdma.SendRequest {
	return rdma.SendRequest{ID: id, Opcode: rdma.OpSend, Local: e.segment(offset, length)}
}

func (e *endpoint) receiveRequest(id uint64, offset, length int) rdma.ReceiveRequest {
	return rdma.ReceiveRequest{ID: id, Local: e.segment(offset, length)}
}

// transfer returns a Write or Read between the same ranges of both memories.
func (e *endpoint) transfer(opcode rdma.Opcode, id uint64, peer *mem, offset,
	length int) rdma.SendRequest {
	return peer.remote(rdma.SendRequest{ID: id, Opcode: opcode, Local: e.segment(offset, length)},
		offset)
}

// post posts requests as one chain and flushes them.
func (e *endpoint) post(requests ...rdma.SendRequest) {
	e.bench.Helper()
	if err := e.conn.PostSend(requests); err != nil {
		e.bench.Fatalf("post: %v", err)
	}
	e.conn.Flush()
}

func (e *endpoint) send(id uint64, offset, length int) {
	e.bench.Helper()
	e.post(e.sendRequest(id, offset, length))
}

func (e *endpoint) postReceive(id uint64, offset, length int) {
	e.bench.Helper()
	if err := e.conn.PostReceive([]rdma.ReceiveRequest{e.receiveRequest(id, offset,
		length)}); err != nil {
		e.bench.Fatalf("post receive: %v", err)
	}
}

// await waits for the next n completions, and removes and returns them.
func (e *endpoint) await(n int) []rdma.Completion {
	e.bench.Helper()
	e.bench.drive("completion", func() bool { return len(e.completions) >= n })
	awaited := e.completions[:n:n]
	e.completions = e.completions[n:]
	return awaited
}

// awaitOne waits for the next completion, which must be a success with the given opcode and id.
func (e *endpoint) awaitOne(opcode rdma.Opcode, id uint64) rdma.Completion {
	e.bench.Helper()
	c := e.await(1)[0]
	if c.Opcode != opcode || c.ID != id || c.Status != rdma.StatusSuccess {
		e.bench.Fatalf("completion is %v %#x %v, want %v %#x", c.Opcode, c.ID, c.Status, opcode, id)
	}
	return c
}

// awaitEnd waits for the end of the connection.
func (e *endpoint) awaitEnd() {
	e.bench.Helper()
	e.bench.drive("the end of the connection", func() bool { return e.disconnects > 0 })
}

// expectNone fails if there is a completion.
func (e *endpoint) expectNone() {
	e.bench.Helper()
	e.poll()
	if len(e.completions) > 0 {
		e.bench.Fatalf("unexpected completion %+v", e.completions[0])
	}
}
