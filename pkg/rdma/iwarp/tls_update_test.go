// SPDX-License-Identifier: Apache-2.0

package iwarp

import (
	"bytes"
	"math"
	"runtime"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// exchangeEnd is an end of a connection with TLS. Its memory has parts: what it sends, and where
// the peer's Writes, its own Reads, and the peer's Sends arrive.
type exchangeEnd struct {
	*testing.T
	conn    *connection
	queue   rdma.CompletionQueue
	memory  rdma.MemoryRegion
	bytes   []byte
	post    [3]rdma.SendRequest
	receive [1]rdma.ReceiveRequest
	poll    [8]rdma.Completion
	have    int
}

const securePart = 128 << 10

func (e *endpoint) newExchangeEnd() *exchangeEnd {
	e.Helper()
	s := &exchangeEnd{T: e.T, queue: e.config.Queue, bytes: make([]byte, 4*securePart)}
	var err error
	if s.memory, err = e.config.Domain.Register(memory.Wrap(s.bytes), allRights); err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() {
		if err := s.memory.Deregister(); err != nil {
			e.Error(err)
		}
	})
	return s
}

// newExchangePair returns both ends of a connection with TLS.
func newExchangePair(t *testing.T) (x, y *exchangeEnd) {
	t.Helper()
	from, to := newEndpoint(t, Options{}), newSecureEndpoint(t, Options{}, true)
	x, y = from.newExchangeEnd(), to.newExchangeEnd()
	config := from.config
	config.TLS = &rdma.ClientTLS{Config: to.honest.DataClient(serverName),
		PrivateData: func([]byte) []byte { return nil }}
	accepted := make(chan rdma.Connection, 1)
	go func() {
		defer close(accepted)
		request, err := to.listener.Accept(contextFor(t))
		if err != nil {
			t.Error(err)
			return
		}
		conn, err := request.Accept(contextFor(t), to.config)
		if err != nil {
			t.Error(err)
			return
		}
		accepted <- conn
	}()
	conn, err := from.device.Connect(contextFor(t), to.listener.Address(), config)
	if err != nil {
		t.Fatal(err)
	}
	other, ok := <-accepted
	if !ok {
		t.FailNow()
	}
	x.conn, y.conn = conn.(*connection), other.(*connection)
	t.Cleanup(func() {
		from.closeAll([]*connection{x.conn})
		to.closeAll([]*connection{y.conn})
	})
	return x, y
}

// begin posts a Write, a Read, and a Send, each of a whole part.
func (e *exchangeEnd) begin(peer *exchangeEnd) {
	local := func(part uint64) rdma.Segment {
		return rdma.Segment{Key: e.memory.LocalKey(), Address: e.memory.Base() + part*securePart,
			Length: securePart}
	}
	remote := func(part uint64) uint64 { return peer.memory.Base() + part*securePart }
	e.receive[0] = rdma.ReceiveRequest{Local: local(3)}
	if err := e.conn.PostReceive(e.receive[:]); err != nil {
		e.Fatal(err)
	}
	e.post = [3]rdma.SendRequest{
		{Opcode: rdma.OpWrite, Local: local(0), RemoteAddress: remote(1),
			RemoteKey: peer.memory.RemoteKey()},
		{Opcode: rdma.OpRead, Local: local(2), RemoteAddress: remote(0),
			RemoteKey: peer.memory.RemoteKey()},
		{Opcode: rdma.OpSend, Local: local(0)},
	}
}

// progress polls once, and counts what has completed.
func (e *exchangeEnd) progress() {
	n := e.queue.Poll(e.poll[:])
	for i := range e.poll[:n] {
		if c := &e.poll[i]; c.Status != rdma.StatusSuccess {
			e.Fatalf("%v: %v, %v", c.Opcode, c.Status, e.conn.Err())
		}
		e.have++
	}
}

// exchange makes both ends do everything at the same time, with new data, and checks it.
func exchange(round byte, x, y *exchangeEnd) {
	for i := range securePart / 64 {
		x.bytes[i*64], y.bytes[i*64] = byte(i)+round, byte(i)^round
	}
	x.begin(y)
	y.begin(x)
	for _, e := range [2]*exchangeEnd{x, y} {
		if err := e.conn.PostSend(e.post[:]); err != nil {
			e.Fatal(err)
		}
		e.conn.Flush()
	}
	for x.have < 4 || y.have < 4 {
		x.progress()
		y.progress()
		runtime.Gosched()
	}
	x.have, y.have = 0, 0
	for part := 1; part < 4; part++ {
		at := part * securePart
		if !bytes.Equal(x.bytes[at:][:securePart], y.bytes[:securePart]) ||
			!bytes.Equal(y.bytes[at:][:securePart], x.bytes[:securePart]) {
			x.Fatalf("other data has arrived in part %d of round %d", part, round)
		}
	}
}

func TestKeysChangeUnderLoad(t *testing.T) {
	x, y := newExchangePair(t)
	after := func(records uint64) {
		for _, e := range []*exchangeEnd{x, y} {
			e.conn.socket.tls.session.UpdateAfter(records)
		}
	}
	round := byte(0)
	allocations := func() float64 {
		return testing.AllocsPerRun(20, func() {
			round++
			exchange(round, x, y)
		})
	}
	if n := allocations(); n != 0 {
		t.Errorf("an exchange allocates %v times", n)
	}
	// One Write takes nine records at least.
	for _, records := range []uint64{1, 2, 3, 7, 50} {
		after(records)
		if allocations() == 0 && records < 50 {
			t.Errorf("no key has changed after %d records", records)
		}
	}
	after(math.MaxUint64)
	if n := allocations(); n != 0 {
		t.Errorf("after the last change of a key, an exchange allocates %v times", n)
	}
}
