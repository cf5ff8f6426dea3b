package emulated

import (
	"sync/atomic"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/memory"
)

// ringPair is both sides of a ring, each in its own mapping of the memory.
type ringPair struct {
	send    *sendRing
	receive receiveRing
}

func newRingPair(tb testing.TB, receives, memorySize int) *ringPair {
	tb.Helper()
	layout, err := planRing(comch.ConsumerConfig{Receives: receives, MemorySize: memorySize}, highestLimits)
	if err != nil {
		tb.Fatal(err)
	}
	own, other := mapTwice(tb, layout.total)
	highest := new(atomic.Uint32)
	highest.Store(1)
	return &ringPair{
		receive: newReceiveRing(viewRing(own, layout), layout, highest),
		send:    newSendRing(viewRing(other, layout), layout.immediate),
	}
}

// postAll posts every receive, each with a buffer of its own.
func (p *ringPair) postAll(tb testing.TB, size uint32) {
	tb.Helper()
	for i := range p.receive.receives {
		if err := p.receive.post(uint32(i)*size, size, i); err != nil {
			tb.Fatal(err)
		}
	}
	p.receive.publish()
}

// next takes a message that must be there, copies it and posts its buffer
// again.
func (p *ringPair) next(tb testing.TB, message []byte) {
	tb.Helper()
	var received [1]comch.Received
	if n, err := p.receive.poll(received[:]); n != 1 || err != nil {
		tb.Fatalf("poll returned %d, %v", n, err)
	}
	r := &received[0]
	copy(message, p.receive.shared.memory[r.Offset:r.Offset+r.Length])
	if err := p.receive.post(r.Offset, 64, r.UserData); err != nil {
		tb.Fatal(err)
	}
	p.receive.publish()
}

func mapTwice(tb testing.TB, length int) (first, second []byte) {
	tb.Helper()
	region, err := memory.Alloc("ring-test", uint64(length))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = region.Close() })
	if err := region.Prefault(); err != nil {
		tb.Fatal(err)
	}
	again, err := memory.Import(duplicateOf(tb, region.Descriptor()), uint64(length), uint64(length), ringAccess)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = again.Close() })
	return region.Bytes(), again.Bytes()
}
