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

// segment is a range of the end's memory.
func (e *end) segment(offset, length int) rdma.Segment {
	return e.mem.segment(offset, length)
}

func (m *mem) segment(offset, length int) rdma.Segment {
	return rdma.Segment{Key: m.LocalKey(), Address: m.Base() + uint64(offset), Length: uint32(length)}
}

// remote points a Write or Read at another end's memory.
func (m *mem) remote(r rdma.SendRequest, offset int) rdma.SendRequest {
	r.RemoteAddress, r.RemoteKey = m.Base()+uint64(offset), m.RemoteKey()
	return r
}

func (e *end) sendRequest(id uint64, offset, length int) rdma.SendRequest {
	return rdma.SendRequest{ID: id, Opcode: rdma.OpSend, Local: e.segment(offset, length)}
}

func (e *end) receiveRequest(id uint64, offset, length int) rdma.ReceiveRequest {
	return rdma.ReceiveRequest{ID: id, Local: e.segment(offset, length)}
}

// transfer is a Write or Read of the same range of both memories.
func (e *end) transfer(opcode rdma.Opcode, id uint64, peer *mem, offset, length int) rdma.SendRequest {
	return peer.remote(rdma.SendRequest{ID: id, Opcode: opcode, Local: e.segment(offset, length)}, offset)
}

// post posts requests as one chain and starts them.
func (e *end) post(requests ...rdma.SendRequest) {
	e.bench.Helper()
	if err := e.conn.PostSend(requests); err != nil {
		e.bench.Fatalf("post: %v", err)
	}
	e.conn.Flush()
}

func (e *end) send(id uint64, offset, length int) {
	e.bench.Helper()
	e.post(e.sendRequest(id, offset, length))
}

func (e *end) postReceive(id uint64, offset, length int) {
	e.bench.Helper()
	if err := e.conn.PostReceive([]rdma.ReceiveRequest{e.receiveRequest(id, offset, length)}); err != nil {
		e.bench.Fatalf("post receive: %v", err)
	}
}

// await waits for the next n completions of the end and takes them.
func (e *end) await(n int) []rdma.Completion {
	e.bench.Helper()
	e.bench.drive("completion", func() bool { return len(e.completions) >= n })
	taken := e.completions[:n:n]
	e.completions = e.completions[n:]
	return taken
}

// awaitOne waits for the next completion, which must be this one.
func (e *end) awaitOne(opcode rdma.Opcode, id uint64) rdma.Completion {
	e.bench.Helper()
	c := e.await(1)[0]
	if c.Opcode != opcode || c.ID != id || c.Status != rdma.StatusSuccess {
		e.bench.Fatalf("completion is %v %#x %v, not %v %#x", c.Opcode, c.ID, c.Status, opcode, id)
	}
	return c
}

// awaitEnd waits until the connection has ended.
func (e *end) awaitEnd() {
	e.bench.Helper()
	e.bench.drive("the end of the connection", func() bool { return e.gone > 0 })
}

// expectNone fails if there is a completion.
func (e *end) expectNone() {
	e.bench.Helper()
	e.poll()
	if len(e.completions) > 0 {
		e.bench.Fatalf("unexpected completion %+v", e.completions[0])
	}
}
