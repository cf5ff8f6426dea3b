// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"testing"

	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// exchange sends a Write and a message one way and a Read back, as a lane does.
func (s *side) exchange(peer *side, requests []rdma.SendRequest, receive []rdma.ReceiveRequest,
	completions []rdma.Completion) {
	must(s.t, peer.conn.PostReceive(receive))
	must(s.t, s.conn.PostSend(requests))
	s.conn.Flush()
	for sent, received := 0, 0; sent < 2 || received < 1; {
		received += peer.queue.Poll(completions)
		sent += s.queue.Poll(completions)
	}
}

// steady returns what exchanges once over a new connection.
func steady(t testing.TB) (exchange func()) {
	x, y := connected(t)
	receive := []rdma.ReceiveRequest{{Local: rdma.Segment{Key: y.mem.LocalKey(), Length: 64}}}
	local := rdma.Segment{Key: x.mem.LocalKey(), Length: 4096}
	message := rdma.Segment{Key: x.mem.LocalKey(), Length: 64}
	key := y.mem.RemoteKey()
	requests := []rdma.SendRequest{
		{Opcode: rdma.OpWrite, Local: local, RemoteKey: key, RemoteAddress: 4096, Silent: true},
		{Opcode: rdma.OpSend, Local: message},
		{Opcode: rdma.OpRead, Local: local, RemoteKey: key, RemoteAddress: 4096},
	}
	completions := make([]rdma.Completion, 8)
	return func() { x.exchange(y, requests, receive, completions) }
}

func TestTheDataPathDoesNotAllocate(t *testing.T) {
	exchange := steady(t)
	if n := testing.AllocsPerRun(1000, exchange); n != 0 {
		t.Errorf("a Write, a Send, and a Read allocate %v times", n)
	}
}

func BenchmarkExchange(b *testing.B) {
	exchange := steady(b)
	b.ReportAllocs()
	for b.Loop() {
		exchange()
	}
}
