// SPDX-License-Identifier: Apache-2.0

package comchtest

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func (s *Suite) testWait(t *testing.T) {
	s.skipWithHost(t, "only this side can sleep")
	if !s.Capabilities.CanWait {
		t.Run("DescriptorIsAbsent", func(t *testing.T) { s.bothWays(t, testNoDescriptor) })
		return
	}
	t.Run("ArmSeesWhatIsThere", func(t *testing.T) { s.bothWays(t, testArm) })
	t.Run("MessageWakesConsumer", func(t *testing.T) { s.bothWays(t, testConsumerWakes) })
	t.Run("ReceiveWakesProducers", func(t *testing.T) { s.bothWays(t, testProducersWake) })
	t.Run("EndWakesOnceAndThenIsSilent", func(t *testing.T) { s.bothWays(t, testEndWakes) })
	t.Run("ClosedConsumerWakesProducer", func(t *testing.T) { s.bothWays(t, testCloseWakes) })
	t.Run("NoWakeUpIsLost", func(t *testing.T) { s.bothWays(t, testNoLostWakeUp) })
}

func testNoDescriptor(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	if x.consumer.Descriptor() != -1 || x.producer.Descriptor() != -1 {
		t.Errorf("descriptors are %d and %d, want -1", x.consumer.Descriptor(),
			x.producer.Descriptor())
	}
}

// readable waits for a descriptor and reports whether it became readable in time.
func readable(t *testing.T, descriptor int, bound time.Duration) bool {
	t.Helper()
	poll := []unix.PollFd{{Fd: int32(descriptor), Events: unix.POLLIN}}
	deadline := time.Now().Add(bound)
	for {
		n, err := unix.Poll(poll, int(max(0, time.Until(deadline).Milliseconds())))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			t.Errorf("poll: %v", err)
		}
		return n > 0
	}
}

// sleep waits for an armed waiter and clears it, as an engine does.
func sleep(t *testing.T, waiter progress.Waiter) {
	t.Helper()
	if !readable(t, waiter.Descriptor(), testkit.Patience) {
		t.Errorf("%T was not woken within %v", waiter, testkit.Patience)
	}
	waiter.Clear()
	waiter.Disarm()
}

func testArm(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	if !x.producer.Arm() || !x.producer.Arm() {
		t.Error("producer did not arm although no receive is posted")
	}
	x.producer.Disarm()
	post(t, x.consumer, 1)
	if !isLate(x.producer) { // a late producer waits for room only after Send has found none
		testkit.Eventually(t, "the posted receive completes", func() bool {
			armed := x.producer.Arm()
			if armed {
				x.producer.Disarm()
			}
			return !armed
		})
	}
	if !x.consumer.Arm() || !x.consumer.Arm() {
		t.Error("consumer did not arm although there is no message")
	}
	x.consumer.Disarm()
	Send(t, x.producer, []byte("x"), nil)
	testkit.Eventually(t, "the message arrives", func() bool {
		armed := x.consumer.Arm()
		if armed {
			x.consumer.Disarm()
		}
		return !armed
	})
	AwaitReceived(t, x.consumer)
	if !x.consumer.Arm() {
		t.Error("consumer did not arm after the message was polled")
	}
	x.consumer.Disarm()
}

func testConsumerWakes(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	post(t, x.consumer, receives)
	for range receives {
		if !x.consumer.Arm() {
			t.Fatal("consumer did not arm")
		}
		if readable(t, x.consumer.Descriptor(), 0) {
			t.Error("descriptor is readable before there is work")
		}
		Send(t, x.producer, []byte("x"), nil)
		sleep(t, x.consumer)
		AwaitReceived(t, x.consumer)
	}
}

func testProducersWake(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	if isLate(x.producer) {
		testLateProducerWakes(t, x)
		return
	}
	second := NewProducer(t, from, x.consumer.ID())
	if !x.producer.Arm() || !second.Arm() {
		t.Fatal("producers did not arm")
	}
	post(t, x.consumer, 1)
	sleep(t, x.producer)
	sleep(t, second)
	Send(t, second, []byte("x"), nil)
	AwaitReceived(t, x.consumer)
	if !x.producer.Arm() || !second.Arm() {
		t.Fatal("producers did not arm again")
	}
	x.producer.Disarm()
	post(t, x.consumer, 1)
	sleep(t, second)
}

// testLateProducerWakes checks that a producer wakes up when its send, taken or not, can go on.
func testLateProducerWakes(t *testing.T, x path) {
	for range 20 {
		err := x.producer.Send([]byte("x"), nil)
		if err != nil {
			WantCode(t, "send without receives", err, status.Again)
		}
		x.producer.Flush()
		if !x.producer.Arm() {
			t.Fatal("producer did not arm although no receive is posted")
		}
		post(t, x.consumer, 1)
		sleep(t, x.producer)
		if err == nil {
			testkit.Eventually(t, "the send completes", func() bool { return collect(x.producer) == 1 })
		} else {
			Send(t, x.producer, []byte("x"), nil)
		}
		AwaitReceived(t, x.consumer)
	}
}

// testEndWakes checks that the end of a connection wakes sleepers, and that their threads can sleep
// again once the descriptors are cleared.
func testEndWakes(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	post(t, x.consumer, 1)
	waiters := []progress.Waiter{x.consumer, newPath(t, from, to).producer}
	for _, waiter := range waiters {
		if !waiter.Arm() {
			t.Fatalf("%T did not arm", waiter)
		}
	}
	from.Abort()
	late := isLate(x.producer)
	for _, waiter := range waiters {
		sleep(t, waiter)
		if late { // a device may signal several times: when it flushes, and when it tells why
			awaitDone(t, to)
			testkit.Eventually(t, "there is silence after the end", func() bool {
				waiter.Clear()
				armed := waiter.Arm()
				silent := armed && !readable(t, waiter.Descriptor(), 0)
				if armed {
					waiter.Disarm()
				}
				return silent
			})
			continue
		}
		if !waiter.Arm() {
			t.Errorf("%T has work after the end of its connection", waiter)
		}
		if readable(t, waiter.Descriptor(), 0) {
			t.Errorf("%T stays readable after the end of its connection", waiter)
		}
		waiter.Disarm()
	}
}

func testCloseWakes(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	if !x.producer.Arm() {
		t.Fatal("producer did not arm")
	}
	CloseAll(t, x.consumer)
	sleep(t, x.producer)
	if x.producer.State() == progress.Running {
		t.Error("producer was woken before its state changed")
	}
	if readable(t, x.producer.Descriptor(), 0) {
		t.Error("descriptor stays readable after the end of the consumer")
	}
}

// testNoLostWakeUp lets both sides sleep whenever they have nothing to do, with random delays at
// the critical places. No timer ends a sleep: a lost wake-up is a hang.
func testNoLostWakeUp(t *testing.T, from, to comch.Connection) {
	const messages = 3000
	consumer := newConsumer(t, to, comch.ConsumerConfig{Receives: 2, MemorySize: 2 * bufferSize})
	producer := NewProducer(t, from, consumer.ID())
	var sender sync.WaitGroup
	defer sender.Wait()
	pause, pauseSender := pauses{seedtest.Random(t, 0)}, pauses{seedtest.Random(t, 1)}
	sender.Go(func() { sendSleepily(t, producer, messages, pauseSender) })
	post(t, consumer, 2)
	received := make([]comch.Received, 2)
	for done := 0; done < messages && !t.Failed(); {
		n := consumer.Poll(received)
		for _, r := range received[:n] {
			pause.once()
			if err := consumer.PostReceive(r.Offset, bufferSize, r.UserData); err != nil {
				t.Fatal(err)
			}
		}
		consumer.Flush()
		done += n
		if n == 0 && consumer.Arm() {
			pause.once()
			sleep(t, consumer)
		}
	}
}

func sendSleepily(t *testing.T, producer comch.Producer, messages int, pause pauses) {
	completed := 0
	for sent := 0; sent < messages && !t.Failed(); {
		completed += collect(producer)
		err := producer.Send([]byte("x"), nil)
		switch err {
		case nil:
			sent++
			pause.once()
			producer.Flush()
		case status.Again:
			if producer.Arm() {
				pause.once()
				sleep(t, producer)
			}
		default:
			t.Errorf("send: %v", err)
			return
		}
	}
	for isLate(producer) && completed < messages && !t.Failed() {
		if producer.Arm() {
			pause.once()
			sleep(t, producer)
		}
		completed += collect(producer)
	}
}

// pauses are short and of random length, for one goroutine.
type pauses struct{ random *rand.Rand }

// once waits for a short random time: asleep, yielding, or busy.
func (p pauses) once() {
	switch p.random.IntN(8) {
	case 0:
		time.Sleep(time.Duration(p.random.IntN(50)) * time.Microsecond)
	case 1, 2:
		runtime.Gosched()
	case 3, 4:
		for range p.random.IntN(1000) {
			_ = p.random.IntN(2)
		}
	}
}
