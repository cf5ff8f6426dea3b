// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

// What the peer has not consumed is never overwritten. Messages without data fill the ring exactly.
func TestAFullRingWaitsForThePeer(t *testing.T) {
	_, sender := connected(t)
	c := sender.conn
	for !c.hasUnsent() {
		must(t, c.PostSend([]rdma.SendRequest{{Opcode: rdma.OpSend}}))
		sender.poll()
	}
	if c.tail-c.peerConsumed != ringBytes {
		t.Errorf("%d bytes of the ring are in use, of %d", c.tail-c.peerConsumed, ringBytes)
	}
}

// The source of a Write is lent to the peer, which copies from it.
func TestALentWriteCompletesWhenThePeerHasCarriedItOut(t *testing.T) {
	peer, sender := connected(t)
	c := sender.conn
	c.lent = []lentMemory{{region: sender.mem}}
	must(t, c.PostSend([]rdma.SendRequest{{Opcode: rdma.OpWrite, RemoteKey: peer.mem.RemoteKey(),
		Local: rdma.Segment{Key: sender.mem.LocalKey(), Length: 8}}}))
	for range 3 {
		sender.poll()
	}
	if c.published != recordBytes || len(sender.polled) > 0 {
		t.Fatalf("%d bytes are published, completions %+v", c.published, sender.polled)
	}
	peer.conn.own.header.consumed.Store(c.published)
	for range 3 {
		sender.poll()
	}
	if len(sender.polled) != 1 || sender.polled[0].Status != rdma.StatusSuccess {
		t.Errorf("completions %+v", sender.polled)
	}
}

// A full ring has room again as soon as the peer has consumed it, which may be while the connection
// completes the requests before the one that waits for room.
func TestRoomIsNoticedWheneverThePeerMakesIt(t *testing.T) {
	peer, sender := connected(t)
	c := sender.conn
	message, err := sender.domain.Register(memory.Wrap(make([]byte, 24<<10)), memory.LocalWrite)
	must(t, err)
	defer func() { must(t, message.Deregister()) }()
	c.lent = []lentMemory{{region: sender.mem}} // so that a Write waits for the peer to copy it

	var stop atomic.Bool
	stopped := make(chan struct{})
	defer func() { stop.Store(true); <-stopped }()
	go func() { // the peer consumes a ring that is full or does not get fuller, and sleeps then
		defer close(stopped)
		own := peer.conn.own.header
		sleeps, consumed, seen, unchanged := uint64(0), uint64(0), uint64(0), 0
		for !stop.Load() {
			tail := peer.conn.peer.header.tail.Load()
			if unchanged++; tail != seen {
				seen, unchanged = tail, 0
			}
			if tail == consumed || tail-consumed < ringBytes-(4<<10) && unchanged < 100 {
				runtime.Gosched()
				continue
			}
			consumed = tail
			own.consumed.Store(consumed)
			sleeps += sleepStep
			own.sleep.Store(sleeps | sleepBit)
		}
	}()
	send := func(bytes uint32) rdma.SendRequest {
		return rdma.SendRequest{Opcode: rdma.OpSend,
			Local: rdma.Segment{Key: message.LocalKey(), Length: bytes}}
	}
	// The last message does not fit, and the one before it is published with the end of the turn.
	requests := []rdma.SendRequest{{Opcode: rdma.OpWrite, RemoteKey: peer.mem.RemoteKey(),
		Local: rdma.Segment{Key: sender.mem.LocalKey(), Length: 8}},
		send(24 << 10), send(24 << 10), send(24 << 10), send(24 << 10), send(24 << 10),
		send(6 << 10), send(6 << 10)}
	for round := range 5000 {
		must(t, c.PostSend(requests))
		for sender.polled = sender.polled[:0]; len(sender.polled) < len(requests); {
			sender.poll()
			consumed := c.peer.header.consumed.Load()
			if c.hasUnsent() && consumed == c.tail && c.published == c.tail &&
				!sender.queue.HasPending() && !sender.queue.hasWork() {
				t.Fatalf("round %d: the ring is empty, and nobody sends the rest", round)
			}
		}
	}
}
