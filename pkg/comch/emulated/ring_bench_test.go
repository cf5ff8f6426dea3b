package emulated

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/memory"
)

const benchReceives = 128

// ringPair is both sides of a ring, each in its own mapping of the memory.
type ringPair struct {
	send    *sendRing
	_       [2 * cacheLine]byte // the sides belong to different threads
	receive receiveRing
	_       [2 * cacheLine]byte
}

func newRingPair(tb testing.TB, receives, memorySize int) *ringPair {
	tb.Helper()
	layout, err := planRing(comch.ConsumerConfig{Receives: receives, MemorySize: memorySize}, highestLimits)
	if err != nil {
		tb.Fatal(err)
	}
	own, other := mapTwice(tb, layout.total)
	highest := &new([64]atomic.Uint32)[32]
	highest.Store(1)
	return &ringPair{
		receive: newReceiveRing(viewRing(own, layout), layout.receives, highest),
		send:    newSendRing(viewRing(other, layout)),
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

func mapTwice(tb testing.TB, length int) (first, second []byte) {
	tb.Helper()
	region, err := memory.Alloc("ring-test", uint64(length))
	if err != nil {
		tb.Fatal(err)
	}
	if err := region.Prefault(); err != nil {
		tb.Fatal(err)
	}
	fd, err := duplicate(region.Descriptor())
	if err != nil {
		tb.Fatal(err)
	}
	again, err := memory.Import(fd, uint64(length), uint64(length), ringAccess)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = region.Close(); _ = again.Close() })
	return region.Bytes(), again.Bytes()
}

// onTwoThreads runs two functions at the same time, each on a thread of its
// own, and waits for both.
func onTwoThreads(first, second func()) {
	var wg sync.WaitGroup
	for _, run := range []func(){first, second} {
		wg.Add(1)
		go func() {
			defer wg.Done()
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			run()
		}()
	}
	wg.Wait()
}

// patience gives the core away after long waits only: the benchmark also has
// to end on a machine that has no second core to spare.
type patience int

func (p *patience) miss() {
	*p++
	if *p > 1<<14 {
		*p = 0
		runtime.Gosched()
	}
}

// BenchmarkRoundTrip compares a message there and back with the least that
// two cores need for it: one line each way.
func BenchmarkRoundTrip(b *testing.B) {
	b.Run("two-cache-lines", benchmarkBareRoundTrip)
	b.Run("message-64B", benchmarkMessageRoundTrip)
}

func benchmarkBareRoundTrip(b *testing.B) {
	b.ReportAllocs()
	own, other := mapTwice(b, ringHeaderSize)
	layout := ringLayout{total: ringHeaderSize, capacity: 0, completions: 0, posted: 0}
	here, there := viewRing(own, layout).header, viewRing(other, layout).header
	total := uint64(b.N)
	b.ResetTimer()
	onTwoThreads(func() {
		for i := uint64(1); i <= total; i++ {
			var wait patience
			here.posted.Store(i)
			for uint64(here.producersWaiting.Load()) != i&0xffffffff {
				wait.miss()
			}
		}
	}, func() {
		for i := uint64(1); i <= total; i++ {
			var wait patience
			for there.posted.Load() != i {
				wait.miss()
			}
			there.producersWaiting.Store(uint32(i))
		}
	})
}

func benchmarkMessageRoundTrip(b *testing.B) {
	b.ReportAllocs()
	request := newRingPair(b, benchReceives, benchReceives*64)
	response := newRingPair(b, benchReceives, benchReceives*64)
	request.postAll(b, 64)
	response.postAll(b, 64)
	total := b.N
	b.ResetTimer()
	onTwoThreads(func() {
		message := make([]byte, 64)
		for range total {
			if err := request.send.send(1, message, nil); err != nil {
				b.Error(err)
				return
			}
			response.next(message)
		}
	}, func() {
		message := make([]byte, 64)
		for range total {
			request.next(message)
			if err := response.send.send(1, message, nil); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// next waits for one message, copies it and posts its buffer again.
func (p *ringPair) next(message []byte) {
	var received [1]comch.Received
	var wait patience
	for {
		n, err := p.receive.poll(received[:])
		if err != nil {
			panic(err)
		}
		if n == 1 {
			break
		}
		wait.miss()
	}
	r := &received[0]
	copy(message, p.receive.shared.memory[r.Offset:r.Offset+r.Length])
	if err := p.receive.post(r.Offset, 64, r.UserData); err != nil {
		panic(err)
	}
	p.receive.publish()
}

// BenchmarkOneWay sends 64-byte messages in one direction as fast as the
// consumer takes them.
func BenchmarkOneWay(b *testing.B) {
	b.ReportAllocs()
	ring := newRingPair(b, 1024, 1024*64)
	ring.postAll(b, 64)
	total := b.N
	b.ResetTimer()
	onTwoThreads(func() {
		message := make([]byte, 64)
		var wait patience
		for sent := 0; sent < total; {
			if ring.send.send(1, message, nil) == nil {
				sent++
			} else {
				wait.miss()
			}
		}
	}, func() {
		ring.drain(total)
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/1e6, "Mmsg/s")
}

func (p *ringPair) drain(total int) {
	received := make([]comch.Received, 32)
	message := make([]byte, 64)
	var wait patience
	for taken := 0; taken < total; {
		n, err := p.receive.poll(received)
		if err != nil {
			panic(err)
		}
		if n == 0 {
			wait.miss()
			continue
		}
		for i := range received[:n] {
			r := &received[i]
			copy(message, p.receive.shared.memory[r.Offset:r.Offset+r.Length])
			if err := p.receive.post(r.Offset, 64, r.UserData); err != nil {
				panic(err)
			}
		}
		p.receive.publish()
		taken += n
	}
}
