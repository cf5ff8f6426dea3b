package comchtest

import (
	"context"
	"errors"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Sizes of the consumers that tests make.
const (
	receives   = 16
	bufferSize = 64 // bytes of one posted buffer
	memorySize = receives * bufferSize
)

// newConsumer makes a consumer and closes it at the end of the test.
func newConsumer(t *testing.T, connection comch.Connection, config comch.ConsumerConfig) comch.Consumer {
	t.Helper()
	consumer, err := connection.NewConsumer(testContext(t), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = consumer.Close() })
	return consumer
}

func newProducer(t *testing.T, connection comch.Connection, id comch.ConsumerID) comch.Producer {
	t.Helper()
	producer, err := connection.NewProducer(testContext(t), id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = producer.Close() })
	return producer
}

// path is a consumer and a producer of the peer to it.
type path struct {
	consumer comch.Consumer
	producer comch.Producer
}

func newPath(t *testing.T, from, to comch.Connection) path {
	t.Helper()
	consumer := newConsumer(t, to, comch.ConsumerConfig{Receives: receives, MemorySize: memorySize})
	return path{consumer: consumer, producer: newProducer(t, from, consumer.ID())}
}

// nextEvent waits for an event and checks it.
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

func (s *suite) testConsumers(t *testing.T) {
	t.Run("ComeAndGoWithEventsInOrder", func(t *testing.T) { s.bothWays(t, testEvents) })
	t.Run("IDsAreUniqueAndNotZero", s.testIDs)
	t.Run("AreRunningAndHaveMemory", func(t *testing.T) { s.bothWays(t, testNewConsumer) })
	t.Run("RefuseImpossibleSizes", s.testImpossibleSizes)
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
		closeAll(t, x.producer, x.producer, x.consumer, x.consumer)
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
	closeAll(t, first)
	third := newConsumer(t, to, config)
	closeAll(t, third, second)
	for _, want := range []comch.ConsumerEvent{
		{ID: first.ID(), Created: true}, {ID: second.ID(), Created: true}, {ID: first.ID()},
		{ID: third.ID(), Created: true}, {ID: third.ID()}, {ID: second.ID()},
	} {
		nextEvent(t, from, want)
	}
}

func (s *suite) testIDs(t *testing.T) {
	p := s.connect(t)
	seen := make(map[comch.ConsumerID]bool)
	for range 3 {
		for _, side := range []comch.Connection{p.client, p.server} {
			id := newConsumer(t, side, comch.ConsumerConfig{Receives: 1, MemorySize: 1}).ID()
			if id == 0 || seen[id] {
				t.Errorf("consumer has id %d, which is 0 or taken", id)
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

func (s *suite) testImpossibleSizes(t *testing.T) {
	p := s.connect(t)
	for _, config := range []comch.ConsumerConfig{
		{Receives: 0, MemorySize: 64},
		{Receives: -1, MemorySize: 64},
		{Receives: s.capabilities.MaxReceives + 1, MemorySize: 64},
		{Receives: 1, MemorySize: 0},
		{Receives: 1, MemorySize: s.capabilities.MaxMemorySize + 1},
		{Receives: 1, MemorySize: 64, ImmediateLength: -1},
		{Receives: 1, MemorySize: 64, ImmediateLength: s.capabilities.MaxImmediateLength + 1},
	} {
		_, err := p.client.NewConsumer(testContext(t), config)
		wantCode(t, "create an impossible consumer", err, status.InvalidValue)
	}
}

func (s *suite) testTooManyConsumers(t *testing.T) {
	p := s.connect(t)
	config := comch.ConsumerConfig{Receives: 1, MemorySize: 1}
	for range s.capabilities.MaxConsumers {
		newConsumer(t, p.client, config)
	}
	_, err := p.client.NewConsumer(testContext(t), config)
	wantCode(t, "create one consumer too many", err, status.Full)
	newConsumer(t, p.server, config)
}

func testMissingConsumer(t *testing.T, from, to comch.Connection) {
	consumer := newConsumer(t, to, comch.ConsumerConfig{Receives: 1, MemorySize: 1})
	ctx := testContext(t)
	_, err := from.NewProducer(ctx, consumer.ID()+100)
	wantCode(t, "create a producer to nobody", err, status.NotFound)
	_, err = to.NewProducer(ctx, consumer.ID())
	wantCode(t, "create a producer to one's own consumer", err, status.NotFound)
	closeAll(t, consumer)
	nextEvent(t, from, comch.ConsumerEvent{ID: consumer.ID(), Created: true})
	nextEvent(t, from, comch.ConsumerEvent{ID: consumer.ID()})
	_, err = from.NewProducer(ctx, consumer.ID())
	wantCode(t, "create a producer to a closed consumer", err, status.NotFound)
}

func testInUse(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	wantCode(t, "close a connection with a consumer", to.Close(), status.InUse)
	wantCode(t, "close a connection with a producer", from.Close(), status.InUse)
	exchange(t, from, to, "not closed")
	closeAll(t, x.producer, from)
	awaitDone(t, to)
	wantCode(t, "close an ended connection with a consumer", to.Close(), status.InUse)
	closeAll(t, x.consumer, to)
}

func testConsumerClosed(t *testing.T, from, to comch.Connection) {
	x, other := newPath(t, from, to), newPath(t, from, to)
	closeAll(t, x.consumer)
	await(t, "the end of the producer", func() bool { return x.producer.State() != progress.Running })
	wantCode(t, "send to a closed consumer", x.producer.Send([]byte("x"), nil), status.NotConnected)
	if got := other.producer.State(); got != progress.Running {
		t.Errorf("the producer of another consumer is %v", got)
	}
}

// testStop stops a consumer that has one message and one posted receive.
func testStop(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	post(t, x.consumer, 2)
	send(t, x.producer, []byte("kept"), nil)
	x.consumer.Stop()
	x.consumer.Stop()
	nextEvent(t, from, comch.ConsumerEvent{ID: x.consumer.ID(), Created: true})
	nextEvent(t, from, comch.ConsumerEvent{ID: x.consumer.ID()})
	await(t, "the end of the producer", func() bool { return x.producer.State() != progress.Running })
	wantCode(t, "send to a stopped consumer", x.producer.Send([]byte("lost"), nil), status.NotConnected)
	wantCode(t, "post on a stopped consumer", x.consumer.PostReceive(0, 1, 0), status.BadState)
	if got := x.consumer.State(); got == progress.Running {
		t.Errorf("a stopped consumer is %v", got)
	}
	got := awaitReceived(t, x.consumer)
	if text := x.consumer.Memory()[got.Offset:][:got.Length]; string(text) != "kept" {
		t.Errorf("received %q", text)
	}
	var received [1]comch.Received
	if n := x.consumer.Poll(received[:]); n != 0 {
		t.Errorf("polled %d messages that were not sent", n)
	}
	wantCode(t, "close a connection with a stopped consumer", to.Close(), status.InUse)
}

func testImmediateLimit(t *testing.T, from, to comch.Connection) {
	const limit = 5
	consumer := newConsumer(t, to, comch.ConsumerConfig{Receives: 1, MemorySize: bufferSize, ImmediateLength: limit})
	producer := newProducer(t, from, consumer.ID())
	post(t, consumer, 1)
	wantCode(t, "send more immediate data than the consumer takes", producer.Send(nil, make([]byte, limit+1)), status.InvalidValue)
	send(t, producer, nil, []byte("12345"))
	if got := awaitReceived(t, consumer); string(got.Immediate[:got.ImmediateLength]) != "12345" {
		t.Errorf("received %+v", got)
	}
}

func testProducerIDs(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	second := newProducer(t, from, x.consumer.ID())
	if x.producer.ID() == 0 || x.producer.ID() == second.ID() {
		t.Errorf("two producers have the ids %d and %d", x.producer.ID(), second.ID())
	}
	for _, producer := range []comch.Producer{second, x.producer} {
		post(t, x.consumer, 1)
		send(t, producer, []byte("x"), nil)
		if got := awaitReceived(t, x.consumer).Producer; got != producer.ID() {
			t.Errorf("message came from producer %d, want %d", got, producer.ID())
		}
	}
}
