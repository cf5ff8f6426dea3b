// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package verbs

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/workqueue"
)

// model is the device that a send ring mirrors: it completes requests in order, except Reads, and
// does not report successful silent requests.
type model struct {
	ring     sendRing
	limit    int
	polled   workqueue.Completions
	pending  []sendEntry // posted and not delivered, in order
	reported []bool      // of pending, by the device
	first    uint32      // index of pending[0]
}

func (m *model) post(t *rapid.T, nextID *uint64) {
	if m.ring.Room() == 0 {
		t.Skip("full")
	}
	opcodes := []rdma.Opcode{rdma.OpSend, rdma.OpWrite, rdma.OpRead}
	e := sendEntry{
		id:     *nextID,
		opcode: rapid.SampledFrom(opcodes).Draw(t, "opcode"),
		silent: rapid.Bool().Draw(t, "silent"),
	}
	*nextID++
	*m.ring.At(m.ring.Tail) = e
	m.ring.Tail++
	m.pending = append(m.pending, e)
	m.reported = append(m.reported, false)
}

// signaled reports whether the device reports a request that succeeds.
func signaled(e sendEntry) bool { return !e.silent || e.opcode == rdma.OpRead }

// report completes the oldest Read, or the oldest other request: siw reports requests that follow a
// Read before the Read.
func (m *model) report(t *rapid.T) {
	reads := rapid.Bool().Draw(t, "reads")
	for i, e := range m.pending {
		if m.reported[i] || !signaled(e) || (e.opcode == rdma.OpRead) != reads {
			continue
		}
		m.reported[i] = true
		m.ring.report(m.first+uint32(i), rdma.StatusSuccess)
		return
	}
	t.Skip("nothing to report")
}

// deliver checks that the ring delivers exactly the requests known to be complete.
func (m *model) deliver(t *rapid.T) {
	for len(m.pending) > 0 {
		complete := m.reported[0]
		if !signaled(m.pending[0]) {
			for _, later := range m.reported {
				complete = complete || later
			}
		}
		got := m.ring.next()
		if !complete {
			if got != nil {
				t.Fatalf("request %d was delivered before its outcome was known", got.id)
			}
			return
		}
		m.delivered(t, got, rdma.StatusSuccess)
	}
	if m.ring.next() != nil {
		t.Fatal("an empty ring delivered a request")
	}
}

// delivered checks the next request that the ring delivered.
func (m *model) delivered(t *rapid.T, got *sendEntry, want rdma.CompletionStatus) {
	if got == nil || got.id != m.pending[0].id || got.status != want {
		t.Fatalf("delivered %+v, want request %d with status %v", got, m.pending[0].id, want)
	}
	complete(&m.ring.Queue, &m.polled)
	m.pending, m.reported = m.pending[1:], m.reported[1:]
	m.first++
}

// complete completes the oldest request of a queue, and polls its completion.
func complete[E any](q *workqueue.Queue[E], completions *workqueue.Completions) {
	q.Complete(completions)
	completions.Collect(make([]rdma.Completion, 1))
}

// flush checks that the ring delivers all remaining requests, as flushed unless known to be
// complete.
func (m *model) flush(t *rapid.T) {
	m.deliver(t)
	for len(m.pending) > 0 {
		want := rdma.StatusFlushed
		later := false
		for _, r := range m.reported[1:] {
			later = later || r
		}
		if m.reported[0] || !signaled(m.pending[0]) && later {
			want = rdma.StatusSuccess
		}
		m.delivered(t, m.ring.nextFlushed(), want)
	}
	if m.ring.nextFlushed() != nil || int(m.ring.Room()) != m.limit {
		t.Fatal("the ring is not empty after nextFlushed returned every request")
	}
}

func TestSendRingDeliversOnceAndInOrder(t *testing.T) {
	seedtest.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 20).Draw(t, "limit")
		m := &model{ring: sendRing{Queue: workqueue.NewQueue[sendEntry](limit)}, limit: limit,
			polled: workqueue.NewCompletions(1)}
		start := rapid.Uint32().Draw(t, "start") // so that indices wrap
		m.ring.Freed, m.ring.Head, m.ring.Tail = start, start, start
		m.ring.reported, m.first = start, start
		var nextID uint64
		t.Repeat(map[string]func(*rapid.T){
			"post":    func(t *rapid.T) { m.post(t, &nextID) },
			"report":  m.report,
			"deliver": m.deliver,
			"flush":   m.flush,
		})
	})
}

func TestReceiveRingDeliversOnceAndInOrder(t *testing.T) {
	r := receiveRing{workqueue.NewQueue[receiveEntry](3)}
	r.Freed, r.Head, r.Tail = 1<<32-2, 1<<32-2, 1<<32-2
	polled := workqueue.NewCompletions(1)
	for round := range uint32(10) {
		for i := range uint32(3) {
			*r.At(r.Tail) = receiveEntry{id: uint64(round*3 + i)}
			r.Tail++
		}
		if r.Room() != 0 || !r.IsOutstanding(r.Head) || r.IsOutstanding(r.Tail) {
			t.Fatalf("round %d: a full ring has room for %d, or wrong bounds", round, r.Room())
		}
		r.report(r.Head+1, 7, rdma.StatusSuccess)
		if r.next() != nil {
			t.Fatal("the second receive was delivered before the first")
		}
		r.report(r.Head, 5, rdma.StatusSuccess)
		for i, length := range []uint32{5, 7} {
			if e := r.next(); e == nil || e.id != uint64(round*3)+uint64(i) || e.length != length {
				t.Fatalf("round %d: receive %d is %+v, want length %d", round, i, e, length)
			}
			complete(&r.Queue, &polled)
		}
		e := r.nextFlushed()
		if e == nil || e.status != rdma.StatusFlushed {
			t.Fatalf("round %d: the last receive is %+v, want flushed", round, e)
		}
		if complete(&r.Queue, &polled); r.nextFlushed() != nil {
			t.Fatalf("round %d: a receive too many", round)
		}
	}
}

func TestWorkIDsEncodeTokenRingAndIndex(t *testing.T) {
	seedtest.Check(t, func(t *rapid.T) {
		slot := rapid.IntRange(0, maxSlots-1).Draw(t, "slot")
		token := newToken(slot, rapid.Uint32().Draw(t, "generation"))
		index := rapid.Uint32().Draw(t, "index")
		if slotOf(token) != slot {
			t.Fatalf("token %#x has slot %d, want %d", token, slotOf(token), slot)
		}
		for receive, id := range map[bool]uint64{
			false: sendWorkID(token, index), true: receiveWorkID(token, index),
		} {
			if a, b, c := splitWorkID(id); a != token || b != index || c != receive {
				t.Fatalf("work ID %#x splits into %#x, %#x, %v; want %#x, %#x, %v",
					id, a, b, c, token, index, receive)
			}
		}
	})
}
