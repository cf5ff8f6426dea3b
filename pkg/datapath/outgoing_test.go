package datapath

import (
	"encoding/binary"
	"testing"

	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/pkg/iomsg"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// gatherer is an outgoing with a model of what must come out of it.
type gatherer struct {
	*rapid.T
	depth     int
	device    *loopDevice // whose memory holds the messages
	out       outgoing
	next      uint64 // number of the next message, which is its content
	seen      uint64 // number of the next message to be posted
	transfers int    // gathered
	posted    int    // of them
	ids       []uint64
	counts    []int // work requests of the posts that have not completed
}

func newGatherer(t *rapid.T, depth int) *gatherer {
	g := &gatherer{T: t, depth: depth, device: newLoopDevice()}
	const before = 3 // messages of others
	g.out = newOutgoing(before, depth)
	size := g.out.end() - before
	domain, _ := g.device.NewProtectionDomain()
	messages, err := newMessageMemory(domain, before+int(size))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = messages.close() })
	g.out.memory = messages
	if g.out.room() != uint32(2*depth+spareMessages) || g.out.room() > size {
		t.Fatalf("there is room for %d messages at depth %d, in a ring of %d", g.out.room(), depth, size)
	}
	return g
}

// gather adds a message, maybe with a transfer ahead of it.
func (g *gatherer) gather() {
	if g.out.room() == 0 {
		return
	}
	if length := rapid.SampledFrom([]uint32{0, 0, 512, 4096, 128 << 10}).Draw(g.T, "transfer"); length > 0 {
		g.transfers++
		r := g.out.transfer(length)
		r.Opcode, r.ID, r.Local.Length = rdma.OpWrite, uint64(g.next), length
	}
	binary.BigEndian.PutUint64(g.out.message()[:], g.next)
	g.next++
	if g.out.full() {
		g.post()
	}
}

// post checks what has been gathered.
func (g *gatherer) post() {
	requests := g.out.take()
	if len(requests) > requestsPerPost {
		g.Fatalf("%d requests in one post", len(requests))
	}
	ahead := uint32(0)
	for i := range requests {
		r := &requests[i]
		if last := i == len(requests)-1; r.Silent == last {
			g.Fatalf("request %d of %d has Silent %v", i, len(requests), r.Silent)
		}
		if r.Opcode == rdma.OpWrite {
			if r.ID < g.seen {
				g.Fatalf("the data of message %d comes behind message %d", r.ID, g.seen-1)
			}
			ahead += r.Local.Length
			g.posted++
			continue
		}
		if ahead >= bytesPerSend+128<<10 {
			g.Fatalf("%d bytes go ahead of one Send", ahead)
		}
		ahead = 0
		g.checkSend(r)
	}
	if g.seen != g.next || g.posted != g.transfers {
		g.Fatalf("%d of %d messages and %d of %d transfers are posted", g.seen, g.next, g.posted, g.transfers)
	}
	if len(requests) > 0 {
		g.ids = append(g.ids, requests[len(requests)-1].ID)
		g.counts = append(g.counts, len(requests))
	}
	if outstanding := sum(g.counts); outstanding > sendRequests(g.depth) {
		g.Fatalf("%d work requests are outstanding at depth %d, which takes %d", outstanding, g.depth, sendRequests(g.depth))
	}
}

func sum(counts []int) (total int) {
	for _, n := range counts {
		total += n
	}
	return total
}

func (g *gatherer) checkSend(r *rdma.SendRequest) {
	if r.Opcode != rdma.OpSend || r.Local.Length%iomsg.Size != 0 || r.Local.Length == 0 || r.Local.Length > g.out.limit*iomsg.Size {
		g.Fatalf("%v of %d bytes, at most %d messages", r.Opcode, r.Local.Length, g.out.limit)
	}
	for b := g.device.bytes(r.Local); len(b) > 0; b = b[iomsg.Size:] {
		if got := binary.BigEndian.Uint64(b); got != g.seen {
			g.Fatalf("message %d is posted instead of %d", got, g.seen)
		}
		g.seen++
	}
}

// complete is the completion of the oldest post.
func (g *gatherer) complete() {
	if len(g.ids) == 0 {
		return
	}
	kind, position := splitWorkID(g.ids[0])
	if kind != messageWork {
		g.Fatalf("a post completes as kind %d", kind)
	}
	g.ids, g.counts = g.ids[1:], g.counts[1:]
	g.out.release(position)
	if len(g.ids) == 0 && g.out.room() != g.out.capacity-uint32(g.next-g.seen) {
		g.Fatalf("room for %d messages when all have been sent", g.out.room())
	}
}

func TestEveryMessageTravelsOnceInOrderAndBehindItsData(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := newGatherer(t, rapid.IntRange(1, 40).Draw(t, "depth"))
		// Positions count up for ever: begin where they wrap around.
		start := rapid.SampledFrom([]uint32{0, -g.out.mask - 1}).Draw(t, "start")
		g.out.head, g.out.sent, g.out.tail = start, start, start
		t.Repeat(map[string]func(*rapid.T){
			"gather":   func(*rapid.T) { g.gather() },
			"post":     func(*rapid.T) { g.post() },
			"complete": func(*rapid.T) { g.complete() },
			"hello": func(t *rapid.T) {
				g.post()
				g.out.limit = rapid.Uint32Range(1, messagesPerSend).Draw(t, "limit")
			},
		})
	})
}
