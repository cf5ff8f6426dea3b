// SPDX-License-Identifier: Apache-2.0

package comchtest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"runtime"
	"sync"
	"testing"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// The size of a consumer in most tests.
const (
	receives   = 16
	bufferSize = 64 // bytes of one posted buffer
	memorySize = receives * bufferSize
)

// newConsumer returns a consumer that is closed when the test ends.
func newConsumer(t *testing.T, connection comch.Connection,
	config comch.ConsumerConfig) comch.Consumer {
	t.Helper()
	consumer, err := connection.NewConsumer(testContext(t), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = consumer.Close() })
	return consumer
}

// NewProducer returns a producer that is closed when the test ends.
func NewProducer(t *testing.T, connection comch.Connection, id comch.ConsumerID) comch.Producer {
	t.Helper()
	producer, err := connection.NewProducer(testContext(t), id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = producer.Close() })
	return producer
}

// path is a consumer, and a producer of the peer that sends to it.
type path struct {
	consumer comch.Consumer
	producer comch.Producer
}

func newPath(t *testing.T, from, to comch.Connection) path {
	t.Helper()
	consumer := newConsumer(t, to, comch.ConsumerConfig{Receives: receives, MemorySize: memorySize})
	return path{consumer: consumer, producer: NewProducer(t, from, consumer.ID())}
}

// nextEvent waits for the next event, which must be want.
func nextEvent(t *testing.T, connection comch.Connection, want comch.ConsumerEvent) {
	t.Helper()
	event, err := connection.NextConsumerEvent(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if event != want {
		t.Fatalf("got event %+v, want %+v", event, want)
	}
}

func (s *Suite) testConsumers(t *testing.T) {
	t.Run("ComeAndGoWithEventsInOrder", func(t *testing.T) { s.bothWays(t, testEvents) })
	t.Run("IDsAreUniqueAndNotZero", s.testIDs)
	t.Run("AreRunningAndHaveMemory", func(t *testing.T) { s.bothWays(t, testNewConsumer) })
	t.Run("RejectImpossibleSizes", s.testImpossibleSizes)
	t.Run("AreLimitedInNumber", s.testTooManyConsumers)
	t.Run("ProducerNeedsAConsumer", func(t *testing.T) { s.bothWays(t, testMissingConsumer) })
	t.Run("KeepTheirConnectionOpen", func(t *testing.T) { s.bothWays(t, testInUse) })
	t.Run("ClosingEndsThePeersProducers", func(t *testing.T) { s.bothWays(t, testConsumerClosed) })
	t.Run("StopKeepsWhatHasArrived", func(t *testing.T) { s.bothWays(t, testStop) })
	t.Run("MayLimitImmediateData", func(t *testing.T) { s.bothWays(t, testImmediateLimit) })
	t.Run("SeeTheIDsOfTheirProducers", func(t *testing.T) { s.bothWays(t, testProducerIDs) })
	t.Run("CanBeClosedTwice", func(t *testing.T) {
		p := s.connect(t)
		x := newPath(t, p.client, p.server)
		CloseAll(t, x.producer, x.producer, x.consumer, x.consumer)
	})
	t.Run("EventsEndWithTheirContext", func(t *testing.T) {
		ctx, cancel := context.WithCancel(testContext(t))
		cancel()
		if _, err := s.connect(t).client.NextConsumerEvent(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want %v", err, context.Canceled)
		}
	})
}

func testEvents(t *testing.T, from, to comch.Connection) {
	config := comch.ConsumerConfig{Receives: receives, MemorySize: memorySize}
	first, second := newConsumer(t, to, config), newConsumer(t, to, config)
	CloseAll(t, first)
	third := newConsumer(t, to, config)
	CloseAll(t, third, second)
	for _, want := range []comch.ConsumerEvent{
		{ID: first.ID(), Created: true}, {ID: second.ID(), Created: true}, {ID: first.ID()},
		{ID: third.ID(), Created: true}, {ID: third.ID()}, {ID: second.ID()},
	} {
		nextEvent(t, from, want)
	}
}

func (s *Suite) testIDs(t *testing.T) {
	p := s.connect(t)
	seen := make(map[comch.ConsumerID]bool)
	for range 3 {
		for _, side := range []comch.Connection{p.client, p.server} {
			id := newConsumer(t, side, comch.ConsumerConfig{Receives: 1, MemorySize: 1}).ID()
			if id == 0 || seen[id] {
				t.Errorf("consumer has id %d, which is 0 or in use", id)
			}
			seen[id] = true
		}
	}
}

func testNewConsumer(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	if got := x.consumer.State(); got != progress.Running {
		t.Errorf("consumer is %v", got)
	}
	if got := x.producer.State(); got != progress.Running {
		t.Errorf("producer is %v", got)
	}
	if got := len(x.consumer.Memory()); got != memorySize {
		t.Errorf("consumer has %d bytes of memory, want %d", got, memorySize)
	}
	for i, b := range x.consumer.Memory() {
		if b != 0 {
			t.Fatalf("byte %d of fresh memory is %#x", i, b)
		}
	}
}

func (s *Suite) testImpossibleSizes(t *testing.T) {
	p := s.connect(t)
	for _, config := range []comch.ConsumerConfig{
		{Receives: 0, MemorySize: 64},
		{Receives: -1, MemorySize: 64},
		{Receives: s.Capabilities.MaxReceives + 1, MemorySize: 64},
		{Receives: 1, MemorySize: 0},
		{Receives: 1, MemorySize: s.Capabilities.MaxMemorySize + 1},
		{Receives: 1, MemorySize: 64, ImmediateLength: -1},
		{Receives: 1, MemorySize: 64, ImmediateLength: s.Capabilities.MaxImmediateLength + 1},
	} {
		_, err := p.client.NewConsumer(testContext(t), config)
		WantCode(t, "create an impossible consumer", err, status.InvalidValue)
	}
}

func (s *Suite) testTooManyConsumers(t *testing.T) {
	p := s.connect(t)
	config := comch.ConsumerConfig{Receives: 1, MemorySize: 1}
	for range s.Capabilities.MaxConsumers {
		newConsumer(t, p.client, config)
	}
	_, err := p.client.NewConsumer(testContext(t), config)
	WantCode(t, "create one consumer too many", err, status.Full)
	newConsumer(t, p.server, config)
}

func testMissingConsumer(t *testing.T, from, to comch.Connection) {
	consumer := newConsumer(t, to, comch.ConsumerConfig{Receives: 1, MemorySize: 1})
	ctx := testContext(t)
	_, err := from.NewProducer(ctx, consumer.ID()+100)
	WantCode(t, "create a producer to an unknown consumer", err, status.NotFound)
	_, err = to.NewProducer(ctx, consumer.ID())
	WantCode(t, "create a producer to a consumer of the same side", err, status.NotFound)
	CloseAll(t, consumer)
	nextEvent(t, from, comch.ConsumerEvent{ID: consumer.ID(), Created: true})
	nextEvent(t, from, comch.ConsumerEvent{ID: consumer.ID()})
	_, err = from.NewProducer(ctx, consumer.ID())
	WantCode(t, "create a producer to a closed consumer", err, status.NotFound)
}

func testInUse(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	WantCode(t, "close a connection with a consumer", to.Close(), status.InUse)
	WantCode(t, "close a connection with a producer", from.Close(), status.InUse)
	exchange(t, from, to, "not closed")
	CloseAll(t, x.producer, from)
	awaitDone(t, to)
	WantCode(t, "close an ended connection with a consumer", to.Close(), status.InUse)
	CloseAll(t, x.consumer, to)
}

func testConsumerClosed(t *testing.T, from, to comch.Connection) {
	x, other := newPath(t, from, to), newPath(t, from, to)
	CloseAll(t, x.consumer)
	testkit.Eventually(t, "the producer has ended",
		func() bool { return x.producer.State() != progress.Running })
	WantCode(t, "send to a closed consumer", x.producer.Send([]byte("x"), nil), status.NotConnected)
	if got := other.producer.State(); got != progress.Running {
		t.Errorf("the producer of another consumer is %v", got)
	}
}

// testStop stops a consumer with one message and one posted receive.
func testStop(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	post(t, x.consumer, 2)
	Send(t, x.producer, []byte("kept"), nil)
	x.consumer.Stop()
	x.consumer.Stop()
	nextEvent(t, from, comch.ConsumerEvent{ID: x.consumer.ID(), Created: true})
	nextEvent(t, from, comch.ConsumerEvent{ID: x.consumer.ID()})
	testkit.Eventually(t, "the producer has ended",
		func() bool { return x.producer.State() != progress.Running })
	WantCode(t, "send to a stopped consumer", x.producer.Send([]byte("lost"), nil),
		status.NotConnected)
	WantCode(t, "post on a stopped consumer", x.consumer.PostReceive(0, 1, 0), status.BadState)
	if got := x.consumer.State(); got == progress.Running {
		t.Errorf("a stopped consumer is %v", got)
	}
	CloseAll(t, x.producer)
	exchange(t, from, to, "the producer has been closed")
	got := AwaitReceived(t, x.consumer)
	if text := x.consumer.Memory()[got.Offset:][:got.Length]; string(text) != "kept" {
		t.Errorf("received %q", text)
	}
	var received [1]comch.Received
	if n := x.consumer.Poll(received[:]); n != 0 {
		t.Errorf("polled %d messages that were not sent", n)
	}
	WantCode(t, "close a connection with a stopped consumer", to.Close(), status.InUse)
}

func testImmediateLimit(t *testing.T, from, to comch.Connection) {
	const limit = 5
	consumer := newConsumer(t, to, comch.ConsumerConfig{Receives: 1, MemorySize: bufferSize,
		ImmediateLength: limit})
	producer := NewProducer(t, from, consumer.ID())
	post(t, consumer, 1)
	producer = wantRejected(t, "send more immediate data than the consumer allows", from,
		path{consumer, producer}, nil, make([]byte, limit+1))
	Send(t, producer, nil, []byte("12345"))
	if got := AwaitReceived(t, consumer); string(got.Immediate[:got.ImmediateLength]) != "12345" {
		t.Errorf("received %+v", got)
	}
}

func testProducerIDs(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	second := NewProducer(t, from, x.consumer.ID())
	if x.producer.ID() == 0 || x.producer.ID() == second.ID() {
		t.Errorf("two producers have the ids %d and %d", x.producer.ID(), second.ID())
	}
	for _, producer := range []comch.Producer{second, x.producer} {
		post(t, x.consumer, 1)
		Send(t, producer, []byte("x"), nil)
		if got := AwaitReceived(t, x.consumer).Producer; got != producer.ID() {
			t.Errorf("message came from producer %d, want %d", got, producer.ID())
		}
	}
}

func (s *Suite) testDataPath(t *testing.T) {
	t.Run("NothingArrivesUnasked", func(t *testing.T) { s.bothWays(t, testNothingPosted) })
	t.Run("FlushMakesReceivesVisible", func(t *testing.T) { s.bothWays(t, testFlushTwice) })
	t.Run("CarriesMessageAndImmediate", func(t *testing.T) { s.bothWays(t, testContents) })
	t.Run("RejectsWhatDoesNotFit", func(t *testing.T) { s.bothWays(t, testTooLong) })
	t.Run("RejectsReceivesOutsideTheMemory", func(t *testing.T) { s.bothWays(t, testOutside) })
	t.Run("HoldsAsManyReceivesAsAgreed", func(t *testing.T) { s.bothWays(t, testFullRing) })
	t.Run("KeepsOrderOverManyRounds", func(t *testing.T) { s.bothWays(t, testRounds) })
	t.Run("PollReturnsNoMoreThanItHasRoomFor",
		func(t *testing.T) { s.bothWays(t, testPartialPoll) })
	t.Run("ReceivesIntoTheApplicationsMemory", s.testOwnMemory)
	t.Run("NumberOfReceivesNeedNotBeAPowerOfTwo", func(t *testing.T) { s.bothWays(t, testOddSize) })
	t.Run("AWatchShowsWhatArrives", func(t *testing.T) { s.bothWays(t, testWatch) })
	t.Run("AbortDropsWhatIsInFlight", func(t *testing.T) { s.bothWays(t, testAbortedProducer) })
	t.Run("DoesNotAllocate", func(t *testing.T) {
		s.skipWithHost(t, "calls to the host allocate")
		s.bothWays(t, testAllocations)
	})
}

// post posts count receives, each with its own buffer, and flushes.
func post(t *testing.T, consumer comch.Consumer, count int) {
	t.Helper()
	for i := range count {
		if err := consumer.PostReceive(uint32(i*bufferSize), bufferSize, uint64(i)); err != nil {
			t.Fatal(err)
		}
	}
	consumer.Flush()
}

// Send sends a message and waits until it has been sent.
func Send(t *testing.T, producer comch.Producer, message, immediate []byte) {
	t.Helper()
	testkit.Eventually(t, "there is room for a message", func() bool {
		collect(producer)
		err := producer.Send(message, immediate)
		if err != nil && err != error(status.Again) {
			t.Fatal(err)
		}
		return err == nil
	})
	producer.Flush()
	if isLate(producer) {
		testkit.Eventually(t, "a send completes", func() bool {
			n := collect(producer)
			if n == 0 && producer.State() != progress.Running {
				t.Fatal(producer.(comch.LateProducer).Err())
			}
			return n == 1
		})
	}
}

func isLate(producer comch.Producer) bool {
	_, late := producer.(comch.LateProducer)
	return late
}

// collect polls a producer, if it has to be, and returns how many sends have succeeded.
func collect(producer comch.Producer) int {
	if late, isLate := producer.(comch.LateProducer); isLate {
		return late.Poll()
	}
	return 0
}

// wantRejected sends what the consumer cannot receive: Send fails, or the producer ends later. It
// returns a producer that runs.
func wantRejected(t *testing.T, what string, from comch.Connection, x path,
	message, immediate []byte) comch.Producer {
	t.Helper()
	err := x.producer.Send(message, immediate)
	late, isLate := x.producer.(comch.LateProducer)
	if err != nil || !isLate {
		WantCode(t, what, err, status.InvalidValue)
		return x.producer
	}
	late.Flush()
	testkit.Eventually(t, "the producer has ended", func() bool {
		if late.Poll() != 0 {
			t.Fatalf("%s: it succeeded", what)
		}
		return late.State() != progress.Running
	})
	WantCode(t, what, late.Err(), status.InvalidValue)
	return NewProducer(t, from, x.consumer.ID())
}

func testNothingPosted(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	err := x.producer.Send([]byte("x"), nil)
	held := err == nil && isLate(x.producer)
	if !held {
		WantCode(t, "send without receives", err, status.Again)
	}
	x.producer.Flush()
	var received [1]comch.Received
	if n := x.consumer.Poll(received[:]); n != 0 || collect(x.producer) != 0 {
		t.Errorf("polled %d messages", n)
	}
	post(t, x.consumer, 1)
	if held {
		testkit.Eventually(t, "the send completes", func() bool { return collect(x.producer) == 1 })
	} else {
		Send(t, x.producer, []byte("x"), nil)
		WantCode(t, "send a second message", x.producer.Send([]byte("y"), nil), status.Again)
	}
	AwaitReceived(t, x.consumer)
	if n := x.consumer.Poll(received[:]); n != 0 {
		t.Errorf("polled %d messages without a receive", n)
	}
}

func testFlushTwice(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	if err := x.consumer.PostReceive(0, bufferSize, 1); err != nil {
		t.Fatal(err)
	}
	x.consumer.Flush()
	x.consumer.Flush()
	Send(t, x.producer, []byte("visible"), nil)
	if got := AwaitReceived(t, x.consumer); got.UserData != 1 || got.Length != 7 {
		t.Errorf("received %+v", got)
	}
}

func testContents(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	immediate := []byte("0123456789abcdef0123456789abcdef")
	for i, size := range []int{0, 1, 7, 63, 64} {
		for _, immediateLength := range []int{0, 1, 31, 32} {
			offset := uint32(i * bufferSize)
			if err := x.consumer.PostReceive(offset, bufferSize, 1<<63|uint64(size)); err != nil {
				t.Fatal(err)
			}
			x.consumer.Flush()
			message := bytes.Repeat([]byte{byte(size)}, size)
			Send(t, x.producer, message, immediate[:immediateLength])
			got := AwaitReceived(t, x.consumer)
			if got.UserData != 1<<63|uint64(size) || got.Offset != offset ||
				got.Length != uint32(size) ||
				got.Producer == 0 {
				t.Errorf("sent %d bytes to offset %d, received %+v", size, offset, got)
			}
			if !bytes.Equal(x.consumer.Memory()[offset:][:size], message) {
				t.Errorf("message of %d bytes arrived with other content", size)
			}
			if !bytes.Equal(got.Immediate[:got.ImmediateLength], immediate[:immediateLength]) {
				t.Errorf("immediate data is %q, want %q", got.Immediate[:got.ImmediateLength],
					immediate[:immediateLength])
			}
		}
	}
}

func testTooLong(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	if err := x.consumer.PostReceive(8, 10, 0); err != nil {
		t.Fatal(err)
	}
	x.consumer.Flush()
	if !isLate(x.producer) {
		testkit.Eventually(t, "the posted receive completes", func() bool {
			return x.producer.Send(make([]byte, 11), nil) != error(status.Again)
		})
	}
	x.producer = wantRejected(t, "send 11 bytes into 10", from, x, make([]byte, 11), nil)
	tooLong := make([]byte, comch.MaxImmediateLength+1)
	WantCode(t, "send too much immediate data", x.producer.Send(nil, tooLong), status.InvalidValue)
	Send(t, x.producer, bytes.Repeat([]byte{0xff}, 10), nil)
	if got := AwaitReceived(t, x.consumer); got.Length != 10 {
		t.Errorf("received %+v", got)
	}
	memory := x.consumer.Memory()
	if memory[7] != 0 || memory[8] != 0xff || memory[17] != 0xff || memory[18] != 0 {
		t.Errorf("memory around the buffer is %x", memory[:32])
	}
}

func testOutside(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	for _, r := range []struct{ offset, length uint32 }{
		{memorySize, 1}, {memorySize - 1, 2}, {memorySize + 1, 0}, {0, memorySize + 1},
		{0xffffffff, 0xffffffff}, {1, 0xffffffff},
	} {
		err := x.consumer.PostReceive(r.offset, r.length, 0)
		WantCode(t, "post outside the memory", err, status.InvalidValue)
	}
	if err := x.consumer.PostReceive(memorySize, 0, 7); err != nil {
		t.Errorf("post an empty buffer at the end of the memory: %v", err)
	}
	x.consumer.Flush()
	Send(t, x.producer, nil, []byte{1})
	if got := AwaitReceived(t, x.consumer); got.UserData != 7 || got.Length != 0 ||
		got.ImmediateLength != 1 {
		t.Errorf("received %+v", got)
	}
}

func testFullRing(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	post(t, x.consumer, receives)
	WantCode(t, "post one receive too many", x.consumer.PostReceive(0, 1, 0), status.Full)
	for range receives {
		Send(t, x.producer, []byte("x"), nil)
	}
	WantCode(t, "post while nothing was polled", x.consumer.PostReceive(0, 1, 0), status.Full)
	AwaitReceived(t, x.consumer)
	if err := x.consumer.PostReceive(0, 1, 0); err != nil {
		t.Errorf("post after a poll: %v", err)
	}
	WantCode(t, "post one receive too many again", x.consumer.PostReceive(0, 1, 0), status.Full)
}

// testRounds goes around the ring many times, one message at a time.
func testRounds(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	post(t, x.consumer, receives)
	message := make([]byte, 8)
	for i := range uint64(20 * receives) {
		binary.LittleEndian.PutUint64(message, i)
		Send(t, x.producer, message, nil)
		got := AwaitReceived(t, x.consumer)
		if value := binary.LittleEndian.Uint64(x.consumer.Memory()[got.Offset:]); value != i ||
			got.UserData != i%receives {
			t.Fatalf("message %d arrived as %d in receive %d", i, value, got.UserData)
		}
		if err := x.consumer.PostReceive(got.Offset, bufferSize, got.UserData); err != nil {
			t.Fatal(err)
		}
		x.consumer.Flush()
	}
}

// testWatch goes around the ring twice. A consumer without a watch is polled.
func testWatch(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	watched, ok := x.consumer.(comch.WatchedConsumer)
	if !ok {
		return
	}
	var received [2]comch.Received
	if n := x.consumer.Poll(received[:]); n != 0 {
		t.Fatalf("poll without receives returned %d", n)
	}
	if w := watched.Watch(); w.IsIdle() {
		t.Error("there is something to watch without a posted receive")
	}
	post(t, x.consumer, receives)
	for range 2 * receives {
		if n := x.consumer.Poll(received[:]); n != 0 {
			t.Fatalf("poll returned %d before anything was sent", n)
		}
		w := watched.Watch()
		if !w.IsIdle() {
			t.Fatal("the watch of an idle consumer says that it has something to do")
		}
		Send(t, x.producer, []byte("x"), nil)
		testkit.Eventually(t, "the watch sees a message", func() bool { return !w.IsIdle() })
		if w = watched.Watch(); w.IsIdle() {
			t.Error("a new watch does not see a message that has arrived")
		}
		if n := x.consumer.Poll(received[:]); n != 1 {
			t.Fatalf("poll returned %d", n)
		}
		r := &received[0]
		if err := x.consumer.PostReceive(r.Offset, bufferSize, r.UserData); err != nil {
			t.Fatal(err)
		}
		x.consumer.Flush()
	}
}

func testPartialPoll(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	post(t, x.consumer, receives)
	for range 5 {
		Send(t, x.producer, []byte("x"), nil)
	}
	if n := x.consumer.Poll(nil); n != 0 {
		t.Errorf("poll without room returned %d", n)
	}
	var received [3]comch.Received
	next := uint64(0)
	for next < 5 {
		n := x.consumer.Poll(received[:])
		for _, r := range received[:n] {
			if r.UserData != next {
				t.Fatalf("receive %d completed, want %d", r.UserData, next)
			}
			next++
		}
	}
}

// testOwnMemory receives into memory that the application gives, and checks that nothing else of it
// changes.
func (s *Suite) testOwnMemory(t *testing.T) {
	if !s.Capabilities.ConsumerMemory {
		t.Run("IsRejected", func(t *testing.T) {
			_, err := s.connect(t).client.NewConsumer(testContext(t),
				comch.ConsumerConfig{Receives: 1, Memory: Allocate(t, memorySize)})
			WantCode(t, "create a consumer with memory", err, status.NotSupported)
		})
		return
	}
	s.bothWays(t, func(t *testing.T, from, to comch.Connection) {
		region := Allocate(t, memorySize)
		want := bytes.Repeat([]byte{0xee}, memorySize)
		copy(region.Bytes(), want)
		for name, config := range map[string]comch.ConsumerConfig{
			"with a size, too": {Receives: 2, MemorySize: memorySize, Memory: region},
			"without receives": {Memory: region},
		} {
			_, err := to.NewConsumer(testContext(t), config)
			WantCode(t, "create a consumer "+name, err, status.InvalidValue)
		}
		consumer := newConsumer(t, to, comch.ConsumerConfig{Receives: 2, Memory: region})
		producer := NewProducer(t, from, consumer.ID())
		if got := consumer.Memory(); len(got) != memorySize || &got[0] != &region.Bytes()[0] {
			t.Errorf("the consumer's memory is not the application's: %d bytes", len(got))
		}
		WantCode(t, "post outside the memory", consumer.PostReceive(memorySize-1, 2, 0),
			status.InvalidValue)
		for i, message := range []string{"first", "", "a message that fills it", "last"} {
			offset := uint32(7 + 3*bufferSize*(i%2))
			err := consumer.PostReceive(offset, uint32(len(message)), uint64(i))
			if err != nil {
				t.Fatal(err)
			}
			consumer.Flush()
			Send(t, producer, []byte(message), []byte{byte(i)})
			got := AwaitReceived(t, consumer)
			copy(want[offset:], message)
			if got.Offset != offset || got.Length != uint32(len(message)) ||
				got.UserData != uint64(i) || got.Immediate[0] != byte(i) {
				t.Errorf("received %+v", got)
			}
			if !bytes.Equal(region.Bytes(), want) {
				t.Errorf("after %q the memory is %q", message, region.Bytes())
			}
		}
		CloseAll(t, consumer)
		if !bytes.Equal(region.Bytes(), want) {
			t.Error("closing the consumer has changed the memory")
		}
	})
}

func testOddSize(t *testing.T, from, to comch.Connection) {
	consumer := newConsumer(t, to, comch.ConsumerConfig{Receives: 3, MemorySize: 3 * bufferSize})
	producer := NewProducer(t, from, consumer.ID())
	post(t, consumer, 3)
	WantCode(t, "post a fourth receive", consumer.PostReceive(0, 1, 0), status.Full)
	for i := range uint64(20) {
		Send(t, producer, []byte{byte(i)}, nil)
		got := AwaitReceived(t, consumer)
		if got.UserData != i%3 || consumer.Memory()[got.Offset] != byte(i) {
			t.Fatalf("message %d arrived as %+v", i, got)
		}
		if err := consumer.PostReceive(got.Offset, bufferSize, got.UserData); err != nil {
			t.Fatal(err)
		}
		consumer.Flush()
	}
}

func testAllocations(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	post(t, x.consumer, receives)
	message, immediate := make([]byte, bufferSize), make([]byte, 8)
	received := make([]comch.Received, receives)
	allocations := testing.AllocsPerRun(1000, func() {
		if x.producer.Send(message, immediate) == nil {
			x.producer.Flush()
		}
		collect(x.producer)
		for _, r := range received[:x.consumer.Poll(received)] {
			if err := x.consumer.PostReceive(r.Offset, bufferSize, r.UserData); err != nil {
				t.Error(err)
			}
		}
		x.consumer.Flush()
	})
	if allocations != 0 {
		t.Errorf("a message takes %v allocations", allocations)
	}
	if late, isLate := x.producer.(comch.LateProducer); isLate {
		late.Abort() // nobody receives what is still in flight
	}
}

// testAbortedProducer closes a producer whose message waits for a receive, if the provider accepts
// such a message.
func testAbortedProducer(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	if late, isLate := x.producer.(comch.LateProducer); isLate {
		err := late.Send([]byte("in flight"), nil)
		if err != nil && !errors.Is(err, status.Again) {
			t.Fatal(err)
		}
		late.Flush()
		late.Abort()
		if err := late.Close(); err != nil {
			t.Fatal(err)
		}
	}
	post(t, x.consumer, 1)
	Send(t, NewProducer(t, from, x.consumer.ID()), []byte("next"), nil)
	got := AwaitReceived(t, x.consumer)
	if text := x.consumer.Memory()[got.Offset:][:got.Length]; string(text) != "next" {
		t.Errorf("received %q", text)
	}
}

const (
	parallelProducers = 4
	parallelMessages  = 5000 // of each producer
)

func (s *Suite) testParallel(t *testing.T) {
	s.skipWithHost(t, "each of its many messages would take several calls to the host")
	t.Run("ProducersOfOneConsumerKeepTheirOrder",
		func(t *testing.T) { s.bothWays(t, testManyProducers) })
	t.Run("PathsHaveTheirOwnThreads", s.testManyPaths)
}

// testManyProducers sends to one consumer from several threads.
func testManyProducers(t *testing.T, from, to comch.Connection) {
	consumer := newConsumer(t, to, comch.ConsumerConfig{Receives: receives, MemorySize: memorySize})
	post(t, consumer, receives)
	var wg sync.WaitGroup
	for i := range parallelProducers {
		producer := NewProducer(t, from, consumer.ID())
		wg.Add(1)
		go func() {
			defer wg.Done()
			produce(t, producer, uint64(i)<<32)
		}()
	}
	next := make(map[uint32]uint64)
	streams := make(map[uint32]uint64)
	consume(t, consumer, parallelProducers*parallelMessages, func(r *comch.Received, value uint64) {
		stream, known := streams[r.Producer]
		if !known {
			streams[r.Producer], stream = value>>32, value>>32
		}
		if want := stream<<32 | next[r.Producer]; value != want {
			t.Errorf("producer %d sent %#x, want %#x", r.Producer, value, want)
		}
		next[r.Producer]++
	})
	wg.Wait()
	if len(next) != parallelProducers {
		t.Errorf("messages came from %d producers, want %d", len(next), parallelProducers)
	}
}

// testManyPaths uses several paths in both directions, each on two threads of its own.
func (s *Suite) testManyPaths(t *testing.T) {
	p := s.connect(t)
	var wg sync.WaitGroup
	for _, sides := range p.sides() {
		for range 2 {
			x := newPath(t, sides[0], sides[1])
			post(t, x.consumer, receives)
			wg.Add(2)
			go func() {
				defer wg.Done()
				produce(t, x.producer, 0)
			}()
			go func() {
				defer wg.Done()
				next := uint64(0)
				consume(t, x.consumer, parallelMessages, func(_ *comch.Received, value uint64) {
					if value != next {
						t.Errorf("received %d, want %d", value, next)
					}
					next++
				})
			}()
		}
	}
	wg.Wait()
}

// produce sends numbered messages on a locked thread.
func produce(t *testing.T, producer comch.Producer, first uint64) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	message := make([]byte, bufferSize)
	completed := 0
	for sent := 0; sent < parallelMessages; {
		completed += collect(producer)
		binary.LittleEndian.PutUint64(message, first+uint64(sent))
		err := producer.Send(message, nil)
		switch err {
		case nil:
			sent++
		case status.Again:
			runtime.Gosched()
		default:
			t.Errorf("send: %v", err)
			return
		}
		producer.Flush()
	}
	for isLate(producer) && completed < parallelMessages && producer.State() == progress.Running {
		completed += collect(producer)
		runtime.Gosched()
	}
	if isLate(producer) && completed != parallelMessages {
		t.Errorf("%d of %d sends have succeeded", completed, parallelMessages)
	}
}

// consume receives count messages and calls see with the first eight bytes of each.
func consume(t *testing.T, consumer comch.Consumer, count int, see func(*comch.Received, uint64)) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	received := make([]comch.Received, 8)
	for done := 0; done < count && !t.Failed(); {
		n := consumer.Poll(received)
		if n == 0 {
			runtime.Gosched()
		}
		for i := range received[:n] {
			r := &received[i]
			see(r, binary.LittleEndian.Uint64(consumer.Memory()[r.Offset:]))
			if err := consumer.PostReceive(r.Offset, bufferSize, r.UserData); err != nil {
				t.Errorf("post receive: %v", err)
			}
		}
		consumer.Flush()
		done += n
	}
}
