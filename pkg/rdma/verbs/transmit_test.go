// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package verbs

import (
	"testing"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/internal/workqueue"
	"github.com/zc-relay/zc-relay/pkg/rdma/verbs/internal/ibv"
)

// newFakeConnection returns an open connection without a device, with one region: 1 MiB at 1 MiB,
// with local key 7.
func newFakeConnection(limit int) *connection {
	d := &device{limits: ibv.Limits{MessageBytes: 1 << 30}}
	domain := &protectionDomain{device: d}
	domain.regions.insert(&memoryRegion{
		localKey: 7, base: 1 << 20, length: 1 << 20, access: memory.LocalWrite,
	})
	q := &completionQueue{device: d, completions: workqueue.NewCompletions(64)}
	c := &connection{
		device:    d,
		domain:    domain,
		queue:     q,
		qp:        &ibv.QueuePair{InlineBytes: inlineBytes},
		token:     newToken(0, 1),
		phase:     phaseOpen,
		sends:     sendRing{Queue: workqueue.NewQueue[sendEntry](limit)},
		receives:  receiveRing{workqueue.NewQueue[receiveEntry](limit)},
		unflushed: make([]ibv.SendWork, 0, limit),
		scratch:   make([]ibv.ReceiveWork, limit),
	}
	c.parameters.OutboundReads = limit
	q.slots.Store(&[]*connection{c})
	return c
}

// completeUnflushed acts as the device: it completes the requests that Flush would post.
func (c *connection) completeUnflushed() {
	n := 0
	for i := range c.unflushed {
		if c.unflushed[i].Flags&ibv.Signaled != 0 {
			c.queue.polled[n] = ibv.Completion{WorkID: c.unflushed[i].WorkID}
			n++
		}
	}
	c.unflushed = c.unflushed[:0]
	for i := range n {
		c.queue.dispatch(&c.queue.polled[i])
	}
}

// BenchmarkBookkeeping measures the provider's own cost of a Write and the Send that follows it,
// without the calls into C and the device.
func BenchmarkBookkeeping(b *testing.B) {
	const pairs = 16
	c := newFakeConnection(2 * pairs)
	local := rdma.Segment{Key: 7, Address: 1 << 20, Length: 4096}
	message := rdma.Segment{Key: 7, Address: 1 << 20, Length: 64}
	var requests [2 * pairs]rdma.SendRequest
	for i := range pairs {
		requests[2*i] = rdma.SendRequest{
			ID: uint64(i), Opcode: rdma.OpWrite, Silent: true, Local: local,
		}
		requests[2*i+1] = rdma.SendRequest{ID: uint64(i), Opcode: rdma.OpSend, Local: message}
	}
	var completions [64]rdma.Completion
	b.ReportAllocs()
	for b.Loop() {
		if err := c.PostSend(requests[:]); err != nil {
			b.Fatal(err)
		}
		c.queue.unflushed, c.listed = c.queue.unflushed[:0], false
		c.completeUnflushed()
		if n := c.queue.completions.Collect(completions[:]); n != pairs {
			b.Fatalf("%d completions, want %d", n, pairs)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/pairs, "ns/pair")
}

func TestPostingIsAllOrNothing(t *testing.T) {
	c := newFakeConnection(4)
	local := rdma.Segment{Key: 7, Address: 1 << 20, Length: 64}
	good := rdma.SendRequest{Opcode: rdma.OpSend, Local: local}
	bad := good
	bad.Local.Key = 8
	if err := c.PostSend([]rdma.SendRequest{good, bad}); err == nil {
		t.Fatal("PostSend accepted memory that is not registered")
	}
	if len(c.unflushed) != 0 || c.sends.Room() != 4 {
		t.Errorf("%d requests are posted, and there is room for %d; want 0 and 4",
			len(c.unflushed), c.sends.Room())
	}
}

func TestUntrustedMemoryIsNotInlined(t *testing.T) {
	for _, untrusted := range []bool{false, true} {
		c := newFakeConnection(4)
		region := &memoryRegion{localKey: 9, base: 0, length: 64, untrusted: untrusted}
		c.domain.regions.insert(region)
		send := rdma.SendRequest{Opcode: rdma.OpSend, Local: rdma.Segment{Key: 9, Length: 64}}
		if err := c.PostSend([]rdma.SendRequest{send}); err != nil {
			t.Fatal(err)
		}
		if inline := c.unflushed[0].Flags&ibv.Inline != 0; inline == untrusted {
			t.Errorf("memory untrusted: %v, but sent inline: %v", untrusted, inline)
		}
	}
}

func TestCompletionsWithoutARequestAreDropped(t *testing.T) {
	c := newFakeConnection(4)
	for _, token := range []uint32{newToken(0, 2), newToken(1, 1), newToken(7, 1)} {
		c.queue.polled[0] = ibv.Completion{WorkID: sendWorkID(token, 0)}
		c.queue.dispatch(&c.queue.polled[0])
	}
	c.queue.polled[0] = ibv.Completion{WorkID: receiveWorkID(c.token, 5)} // nothing was posted
	c.queue.dispatch(&c.queue.polled[0])
	if n := c.queue.completions.Len(); n != 0 {
		t.Errorf("%d completions, want 0", n)
	}
}
