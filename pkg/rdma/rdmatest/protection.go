// SPDX-License-Identifier: Apache-2.0

package rdmatest

import (
	"bytes"
	"runtime"
	"sync/atomic"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

var protectionTests = []conformanceTest{
	{"KeysAreNotReused", "", freshKeys},
	{"ForbiddenWritesEndTheConnectionAndChangeNothing", "", forbiddenWrites},
	{"ForbiddenReadsEndTheConnectionAndReturnNothing", "", forbiddenReads},
}

func freshKeys(b *bench) {
	e := b.newEndpoint(b.device, 4096)
	seen := map[uint32]bool{}
	for range 200 {
		m, err := e.domain.Register(e.mem.region, allRights)
		if err != nil {
			b.Fatal(err)
		}
		if seen[m.RemoteKey()] {
			b.Fatalf("key %#x was used twice", m.RemoteKey())
		}
		seen[m.RemoteKey()] = true
		if err := m.Deregister(); err != nil {
			b.Fatal(err)
		}
	}
}

// forbidden returns requests with remote addresses and keys that y must not let a peer reach.
// needed is the right that the peer would need.
func forbidden(b *bench, y *endpoint, needed memory.Access) map[string]rdma.SendRequest {
	b.Helper()
	gone, err := y.domain.Register(y.mem.region, allRights)
	if err != nil {
		b.Fatal(err)
	}
	if err := gone.Deregister(); err != nil {
		b.Fatal(err)
	}
	other := b.newEndpoint(y.device, 8192) // has its own domain
	noRight := y.register(8192, allRights&^needed)
	base := y.mem.Base()
	return map[string]rdma.SendRequest{
		"unknown key":        {RemoteKey: y.mem.RemoteKey() ^ 0x5a5a5a5a, RemoteAddress: base},
		"next key":           {RemoteKey: y.mem.RemoteKey() + 1, RemoteAddress: base},
		"deregistered":       {RemoteKey: gone.RemoteKey(), RemoteAddress: gone.Base()},
		"no right":           {RemoteKey: noRight.RemoteKey(), RemoteAddress: noRight.Base()},
		"another domain":     {RemoteKey: other.mem.RemoteKey(), RemoteAddress: other.mem.Base()},
		"across the end":     {RemoteKey: y.mem.RemoteKey(), RemoteAddress: base + y.mem.Len() - 1},
		"behind the end":     {RemoteKey: y.mem.RemoteKey(), RemoteAddress: base + y.mem.Len()},
		"before the start":   {RemoteKey: y.mem.RemoteKey(), RemoteAddress: base - 4096 - 1},
		"far behind the end": {RemoteKey: y.mem.RemoteKey(), RemoteAddress: base + 1<<62},
	}
}

func forbiddenWrites(b *bench) { b.forbiddenTransfers(rdma.OpWrite, memory.RemoteWrite) }

func forbiddenReads(b *bench) { b.forbiddenTransfers(rdma.OpRead, memory.RemoteRead) }

func (b *bench) forbiddenTransfers(opcode rdma.Opcode, needed memory.Access) {
	names := forbidden(b, b.newEndpoint(b.device, 8192), needed)
	if opcode == rdma.OpRead && !b.has(RemoteReadRight) {
		delete(names, "no right")
	}
	for name := range names {
		for _, size := range []int{2, 4096} {
			x, y := b.pair()
			request := forbidden(b, y, needed)[name]
			before, local := bytes.Clone(y.mem.bytes), bytes.Clone(x.mem.bytes)
			request.ID, request.Opcode, request.Local = 1, opcode, x.segment(0, size)
			x.post(request)
			x.awaitEnd()
			y.awaitEnd()
			if x.conn.Err() == nil || y.conn.Err() == nil {
				b.Errorf("%s: Err is %v at the offender, %v at the victim", name, x.conn.Err(),
					y.conn.Err())
			}
			if !bytes.Equal(before, y.mem.bytes) || !bytes.Equal(local, x.mem.bytes) {
				b.Errorf("%s: memory was changed by %v", name, opcode)
			}
			if c := x.await(1)[0]; opcode == rdma.OpRead && c.Status == rdma.StatusSuccess {
				b.Errorf("%s: the Read completes with success", name)
			}
		}
	}
}

var revocationTests = []conformanceTest{
	{"NothingTouchesDeregisteredMemory", "", revokedUnderWay},
	{"DeregisteredSourcesFailTheirConnection", "", revokedSource},
	{"OtherConnectionsOutliveARevocation", "", revocationIsLocal},
}

// revokedUnderWay deregisters memory on another goroutine while the peer keeps writing to it.
func revokedUnderWay(b *bench) {
	for range 10 {
		x, y := b.pair()
		const size = 1 << 20
		source, target := x.register(size, allRights), y.register(size, allRights)
		var revoked atomic.Bool
		written := 0
		result := make(chan bool, 1)
		for x.disconnects == 0 {
			request := target.remote(rdma.SendRequest{Opcode: rdma.OpWrite,
				Local: source.segment(0, size)}, 0)
			if x.conn.PostSend([]rdma.SendRequest{request}) == nil {
				x.conn.Flush()
				written++
			}
			if written == 3 {
				written++
				go func() {
					ok := target.Deregister() == nil
					clear(target.bytes) // the peer must not write from here on
					revoked.Store(true)
					result <- ok
				}()
			}
			x.poll()
			y.poll()
			x.completions = nil
			runtime.Gosched()
		}
		if !<-result {
			b.Error("Deregister failed")
		}
		y.awaitEnd()
		if len(bytes.TrimLeft(target.bytes, "\x00")) > 0 {
			b.Error("memory was written after Deregister had returned")
		}
		if y.conn.Err() == nil {
			b.Error("the connection that used the memory ended without an error")
		}
	}
}

// revokedSource deregisters the source of Writes that wait because the socket is full.
func revokedSource(b *bench) {
	x, y := b.pairOf(2 << 20)
	source := x.register(2<<20, allRights)
	var chain []rdma.SendRequest
	for i := range requests {
		write := rdma.SendRequest{ID: uint64(i), Opcode: rdma.OpWrite, Local: source.segment(0,
			2<<20)}
		chain = append(chain, y.mem.remote(write, 0))
	}
	// Nobody polls the peer, so what does not fit its socket stays here.
	x.post(chain...)
	if err := source.Deregister(); err != nil {
		b.Fatal(err)
	}
	x.awaitEnd()
	y.awaitEnd()
	if c := x.await(requests)[requests-1]; c.Status == rdma.StatusSuccess {
		b.Error("the last request was sent from memory that was deregistered")
	}
	if x.conn.Err() == nil {
		b.Error("the connection ended without an error")
	}
}

func revocationIsLocal(b *bench) {
	x, y := b.pair()
	extra := y.register(4096, allRights)
	if err := extra.Deregister(); err != nil {
		b.Fatal(err)
	}
	y.postReceive(1, 0, helloBytes)
	x.post(x.transfer(rdma.OpWrite, 2, y.mem, 4096, 4096), x.sendRequest(3, 0, helloBytes))
	y.awaitOne(rdma.OpReceive, 1)
	x.await(2)
}
