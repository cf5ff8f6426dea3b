package rdmatest

import "github.com/zc-relay/zc-relay/pkg/rdma"

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
