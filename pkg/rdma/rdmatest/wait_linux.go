// SPDX-License-Identifier: Apache-2.0

package rdmatest

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/pkg/rdma"
)

var waitTests = []conformanceTest{
	{"AnIdleQueueLetsItsThreadSleep", Descriptor, idleQueue},
	{"WorkThatIsReadyKeepsTheThreadAwake", Descriptor, readyQueue},
	{"SleepersMissNoMessage", Descriptor, sleepers},
	{"AbortWakesTheSleeper", Descriptor, abortWakes},
	{"AFullSocketWakesTheSleeperWhenItDrains", WritesNeedPolling, fullSocketWakes},
}

// arm polls all endpoints until the queue can be armed.
func (e *endpoint) arm() {
	e.bench.Helper()
	e.bench.drive("quiet", func() bool { return e.queue.Arm() })
}

func idleQueue(b *bench) {
	x, _ := b.pair()
	if descriptor := x.queue.Descriptor(); descriptor < 0 {
		b.Fatalf("descriptor is %d, but Config.Missing does not name %q", descriptor, Descriptor)
	}
	x.arm()
	defer x.queue.Disarm()
	if readable(b, x.queue.Descriptor(), 50*time.Millisecond) {
		b.Error("the descriptor of an idle queue is readable")
	}
}

func readyQueue(b *bench) {
	x, y := b.pair()
	x.post(x.transfer(rdma.OpWrite, 1, y.mem, 0, 64))
	b.drive("completion", func() bool { return len(x.completions) == 1 })
	if err := x.conn.PostSend([]rdma.SendRequest{x.transfer(rdma.OpWrite, 1, y.mem, 0,
		64)}); err != nil {
		b.Fatal(err)
	}
	if x.queue.Arm() {
		b.Error("a queue with an unflushed request lets its thread sleep")
		x.queue.Disarm()
	}
}

// sleeper polls an endpoint on its own thread and sleeps whenever it may. A lost wake-up shows
// as a sleep that times out.
func (e *endpoint) sleeper(rounds int, first bool, random *rand.Rand) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if first {
		e.send(2, 0, helloBytes)
	}
	for received := 0; received < rounds; {
		if e.poll() == 0 {
			e.sleep(random)
			continue
		}
		for _, c := range e.completions {
			if c.Status != rdma.StatusSuccess {
				return e.conn.Err()
			}
			if c.Opcode != rdma.OpReceive {
				continue
			}
			received++
			if received == rounds && first {
				break // the peer has received its last message
			}
			e.postReceive(1, 0, helloBytes)
			delay(random)
			e.send(2, 0, helloBytes)
		}
		e.completions = e.completions[:0]
	}
	return nil
}

// sleep follows the protocol of progress.Waiter, with random delays.
func (e *endpoint) sleep(random *rand.Rand) {
	delay(random)
	if !e.queue.Arm() {
		return
	}
	delay(random)
	if readable(e.bench, e.queue.Descriptor(), e.bench.config.Timeout) {
		e.queue.Clear()
	} else {
		e.bench.Error("a wake-up was lost")
	}
	e.queue.Disarm()
}

// delay waits for a random time of up to a few microseconds, so that sleeping and waking interleave
// in every way.
func delay(random *rand.Rand) {
	for range random.IntN(500) {
		random.Uint32()
	}
	if random.IntN(8) == 0 {
		runtime.Gosched()
	}
}

func sleepers(b *bench) {
	const rounds = 2000
	x, y := b.pair()
	x.postReceive(1, 0, helloBytes)
	y.postReceive(1, 0, helloBytes)
	results := make(chan error, 2)
	randomX, randomY := seedtest.Random(b.T, 0), seedtest.Random(b.T, 1)
	go func() { results <- x.sleeper(rounds, true, randomX) }()
	go func() { results <- y.sleeper(rounds, false, randomY) }()
	for range 2 {
		if err := <-results; err != nil {
			b.Error(err)
		}
	}
	x.completions, y.completions = nil, nil
}

func abortWakes(b *bench) {
	random := seedtest.Random(b.T, 0)
	for range 50 {
		x, _ := b.pair()
		x.arm()
		done := make(chan struct{})
		go func() {
			delay(random)
			x.conn.Abort()
			close(done)
		}()
		if !readable(b, x.queue.Descriptor(), b.config.Timeout) {
			b.Fatal("Abort does not wake the thread")
		}
		x.queue.Clear()
		x.queue.Disarm()
		x.awaitEnd()
		<-done
	}
}

// fullSocketWakes sends more than the socket buffers hold, sleeps, and lets the peer read.
func fullSocketWakes(b *bench) {
	if !b.has(Descriptor) {
		b.Skipf("it needs that %s", Descriptor)
	}
	const size = 4 << 20
	x, y := b.pairOf(size)
	chain := make([]rdma.SendRequest, requests)
	for i := range chain {
		chain[i] = x.transfer(rdma.OpWrite, 1, y.mem, 0, size)
	}
	x.post(chain...)
	b.endpoints = remove(b.endpoints, y)
	x.arm() // the peer does not read, so this side waits
	if readable(b, x.queue.Descriptor(), 0) {
		b.Fatal("the descriptor is readable while the socket is full")
	}
	b.endpoints = append(b.endpoints, y)
	deadline := time.Now().Add(b.config.Timeout)
	for !readable(b, x.queue.Descriptor(), 0) {
		y.poll()
		if time.Now().After(deadline) {
			b.Fatal("the thread is not woken when the socket has room again")
		}
	}
	x.queue.Disarm()
	x.await(requests)
}

// readable waits for the descriptor and reports whether it became readable in time.
func readable(b *bench, descriptor int, timeout time.Duration) bool {
	fds := []unix.PollFd{{Fd: int32(descriptor), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, int(timeout.Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			b.Errorf("poll: %v", err)
		}
		return n > 0
	}
}
