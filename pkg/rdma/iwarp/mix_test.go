// SPDX-License-Identifier: Apache-2.0

package iwarp_test

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"

	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// The parts of each side's memory in TestRandomRequestsMatchModel.
const (
	mixSource = 0           // source of Sends and Writes, and of Reads by the peer; constant
	mixTarget = 1 * mixPart // target of Writes by the peer
	mixSink   = 2 * mixPart // sink of Reads
	mixInbox  = 3 * mixPart // receives, one slot for each Send by the peer
	mixSlot   = 16 << 10
	mixPart   = 256 << 10
)

// mixRequest is one random request.
type mixRequest struct {
	opcode         rdma.Opcode
	size           int
	source, target int
	silent         bool
}

// mixer posts the random requests of one side and checks their completions.
type mixer struct {
	side, peer *side
	random     *rand.Rand
	requests   []mixRequest
	posted     int
	reads      int
	wantSends  []uint64 // IDs of the expected completions, in order
	inbox      int      // messages sent to the peer
	received   int
}

// TestRandomRequestsMatchModel runs random requests in both directions through a proxy that cuts
// the streams at random places. It compares both memories with a model that executes the requests
// in order.
func TestRandomRequestsMatchModel(t *testing.T) {
	seedtest.Check(t, func(rt *rapid.T) {
		crc := rapid.Bool().Draw(rt, "crc")
		// The final Read completes only after everything before it has been placed.
		last := mixRequest{opcode: rdma.OpRead}
		plans := [2][]mixRequest{append(drawMix(rt, "x"), last), append(drawMix(rt, "y"), last)}
		seed := rapid.Uint64().Draw(rt, "seed")
		t.Run("", func(t *testing.T) { runMix(t, crc, plans, seed) })
		if t.Failed() {
			rt.Fatal("see above")
		}
	})
}

func drawMix(rt *rapid.T, name string) []mixRequest {
	opcodes := []rdma.Opcode{rdma.OpSend, rdma.OpWrite, rdma.OpRead}
	return rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) mixRequest {
		r := mixRequest{
			opcode: rapid.SampledFrom(opcodes).Draw(rt, "opcode"),
			silent: rapid.Bool().Draw(rt, "silent"),
		}
		limit := 200_000
		if r.opcode == rdma.OpSend {
			limit = mixSlot
		}
		r.size = rapid.OneOf(rapid.IntRange(0, 300), rapid.IntRange(0, limit)).Draw(rt, "size")
		r.source = rapid.IntRange(0, mixPart-r.size).Draw(rt, "source")
		r.target = rapid.IntRange(0, mixPart-r.size).Draw(rt, "target")
		return r
	}), 1, 30).Draw(rt, name)
}

func runMix(t *testing.T, crc bool, plans [2][]mixRequest, seed uint64) {
	p := proxy{piece: randomPieces(seed), observe: observeNothing}
	l := connectVia(t, crc, func(a netip.AddrPort) netip.AddrPort { return p.start(t, a) })
	x := &mixer{side: l.x, peer: l.y, requests: plans[0]}
	y := &mixer{side: l.y, peer: l.x, requests: plans[1]}
	var models [2][]byte
	for i, m := range []*mixer{x, y} {
		m.random = rand.New(rand.NewPCG(seed, uint64(2+i)))
		_, _ = rand.NewChaCha8([32]byte{byte(i), byte(seed)}).Read(m.side.bytes)
		models[i] = bytes.Clone(m.side.bytes)
		for slot := range 60 {
			m.receive(t, slot)
		}
	}
	x.model(models[0], models[1])
	y.model(models[1], models[0])
	for !x.done(y) || !y.done(x) {
		if x.step(t)+y.step(t) == 0 {
			runtime.Gosched()
		}
		if l.x.disconnected || l.y.disconnected || t.Failed() {
			t.Fatalf("connection ended: %v, %v", l.x.conn.Err(), l.y.conn.Err())
		}
	}
	if !bytes.Equal(l.x.bytes, models[0]) || !bytes.Equal(l.y.bytes, models[1]) {
		t.Error("the memory differs from the model")
	}
}

func (m *mixer) receive(t testing.TB, slot int) {
	request := rdma.ReceiveRequest{
		ID: uint64(slot), Local: m.side.segment(mixInbox+uint64(slot)*mixSlot, mixSlot),
	}
	if err := m.side.conn.PostReceive([]rdma.ReceiveRequest{request}); err != nil {
		t.Fatal(err)
	}
}

// model executes the requests on copies of both memories.
func (m *mixer) model(own, peer []byte) {
	slot := 0
	for _, r := range m.requests {
		switch r.opcode {
		case rdma.OpSend:
			copy(peer[mixInbox+slot*mixSlot:], own[mixSource+r.source:][:r.size])
			slot++
		case rdma.OpWrite:
			copy(peer[mixTarget+r.target:], own[mixSource+r.source:][:r.size])
		case rdma.OpRead:
			copy(own[mixSink+r.target:], peer[mixSource+r.source:][:r.size])
		}
	}
}

// done reports whether all requests of this side have taken effect.
func (m *mixer) done(peer *mixer) bool {
	return m.posted == len(m.requests) && len(m.wantSends) == 0 && peer.received == m.inbox
}

// step posts at most one request and polls for completions.
func (m *mixer) step(t testing.TB) int {
	if m.posted < len(m.requests) {
		m.post(t)
	}
	n := m.side.queue.Poll(m.side.poll[:1+m.random.IntN(8)])
	for _, c := range m.side.poll[:n] {
		switch c.Opcode {
		case rdma.OpDisconnected:
			m.side.disconnected = true
		case rdma.OpReceive:
			if c.ID != uint64(m.received) || c.Status != rdma.StatusSuccess {
				t.Errorf("receive %d completes as %v, want receive %d", c.ID, c.Status, m.received)
			}
			m.received++
		default:
			if len(m.wantSends) == 0 || c.ID != m.wantSends[0] || c.Status != rdma.StatusSuccess {
				t.Fatalf("%v %d completes as %v, want the first of %v",
					c.Opcode, c.ID, c.Status, m.wantSends)
			}
			m.wantSends = m.wantSends[1:]
			if c.Opcode == rdma.OpRead {
				m.reads--
			}
		}
	}
	return n
}

const mixReads = 8

func (m *mixer) post(t testing.TB) {
	r := m.requests[m.posted]
	if r.opcode == rdma.OpRead && m.reads == mixReads {
		return
	}
	request := rdma.SendRequest{
		ID: uint64(m.posted), Opcode: r.opcode, RemoteKey: m.peer.memory.RemoteKey(),
	}
	switch r.opcode {
	case rdma.OpRead:
		m.reads++
		request.Local = m.side.segment(uint64(mixSink+r.target), r.size)
		request.RemoteAddress = m.peer.memory.Base() + uint64(mixSource+r.source)
	case rdma.OpWrite:
		request.Local = m.side.segment(uint64(mixSource+r.source), r.size)
		request.RemoteAddress = m.peer.memory.Base() + uint64(mixTarget+r.target)
	case rdma.OpSend:
		m.inbox++
		request.Local = m.side.segment(uint64(mixSource+r.source), r.size)
	}
	// The last request frees the slots of the silent ones before it. Reads complete visibly,
	// because post has to count them.
	request.Silent = r.silent && r.opcode != rdma.OpRead && m.posted < len(m.requests)-1
	if !request.Silent {
		m.wantSends = append(m.wantSends, request.ID)
	}
	m.posted++
	if err := m.side.conn.PostSend([]rdma.SendRequest{request}); err != nil {
		t.Fatal(err)
	}
	if m.random.IntN(2) == 0 {
		m.side.conn.Flush()
	}
}
