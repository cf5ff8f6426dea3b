package comchtest

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func (s *suite) testDataPath(t *testing.T) {
	t.Run("NothingArrivesUnasked", func(t *testing.T) { s.bothWays(t, testNothingPosted) })
	t.Run("FlushMakesReceivesVisible", func(t *testing.T) { s.bothWays(t, testFlushTwice) })
	t.Run("CarriesMessageAndImmediate", func(t *testing.T) { s.bothWays(t, testContents) })
	t.Run("RefusesWhatDoesNotFit", func(t *testing.T) { s.bothWays(t, testTooLong) })
	t.Run("RefusesReceivesOutsideTheMemory", func(t *testing.T) { s.bothWays(t, testOutside) })
	t.Run("HoldsAsManyReceivesAsAgreed", func(t *testing.T) { s.bothWays(t, testFullRing) })
	t.Run("KeepsOrderOverManyRounds", func(t *testing.T) { s.bothWays(t, testRounds) })
	t.Run("PollTakesNoMoreThanItHasRoomFor", func(t *testing.T) { s.bothWays(t, testPartialPoll) })
	t.Run("NumberOfReceivesNeedNotBeAPowerOfTwo", func(t *testing.T) { s.bothWays(t, testOddSize) })
	t.Run("DoesNotAllocate", func(t *testing.T) { s.bothWays(t, testAllocations) })
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

func send(t *testing.T, producer comch.Producer, message, immediate []byte) {
	t.Helper()
	await(t, "room for a message", func() bool {
		err := producer.Send(message, immediate)
		if err != nil && err != error(status.Again) {
			t.Fatal(err)
		}
		return err == nil
	})
	producer.Flush()
}

func testNothingPosted(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	wantCode(t, "send without receives", x.producer.Send([]byte("x"), nil), status.Again)
	var received [1]comch.Received
	if n := x.consumer.Poll(received[:]); n != 0 {
		t.Errorf("polled %d messages", n)
	}
	post(t, x.consumer, 1)
	send(t, x.producer, []byte("x"), nil)
	wantCode(t, "send a second message", x.producer.Send([]byte("y"), nil), status.Again)
	awaitReceived(t, x.consumer)
}

func testFlushTwice(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	if err := x.consumer.PostReceive(0, bufferSize, 1); err != nil {
		t.Fatal(err)
	}
	x.consumer.Flush()
	x.consumer.Flush()
	send(t, x.producer, []byte("visible"), nil)
	if got := awaitReceived(t, x.consumer); got.UserData != 1 || got.Length != 7 {
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
			send(t, x.producer, message, immediate[:immediateLength])
			got := awaitReceived(t, x.consumer)
			if got.UserData != 1<<63|uint64(size) || got.Offset != offset || got.Length != uint32(size) || got.Producer == 0 {
				t.Errorf("sent %d bytes to offset %d, received %+v", size, offset, got)
			}
			if !bytes.Equal(x.consumer.Memory()[offset:][:size], message) {
				t.Errorf("message of %d bytes arrived changed", size)
			}
			if !bytes.Equal(got.Immediate[:got.ImmediateLength], immediate[:immediateLength]) {
				t.Errorf("immediate data is %q, want %q", got.Immediate[:got.ImmediateLength], immediate[:immediateLength])
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
	await(t, "the posted receive", func() bool { return x.producer.Send(make([]byte, 11), nil) != error(status.Again) })
	wantCode(t, "send 11 bytes into 10", x.producer.Send(make([]byte, 11), nil), status.InvalidValue)
	tooLong := make([]byte, comch.MaxImmediateLength+1)
	wantCode(t, "send too much immediate data", x.producer.Send(nil, tooLong), status.InvalidValue)
	send(t, x.producer, bytes.Repeat([]byte{0xff}, 10), nil)
	if got := awaitReceived(t, x.consumer); got.Length != 10 {
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
		{memorySize, 1}, {memorySize - 1, 2}, {memorySize + 1, 0}, {0, memorySize + 1}, {0xffffffff, 0xffffffff}, {1, 0xffffffff},
	} {
		err := x.consumer.PostReceive(r.offset, r.length, 0)
		wantCode(t, "post outside the memory", err, status.InvalidValue)
	}
	if err := x.consumer.PostReceive(memorySize, 0, 7); err != nil {
		t.Errorf("post nothing at the end of the memory: %v", err)
	}
	x.consumer.Flush()
	send(t, x.producer, nil, []byte{1})
	if got := awaitReceived(t, x.consumer); got.UserData != 7 || got.Length != 0 || got.ImmediateLength != 1 {
		t.Errorf("received %+v", got)
	}
}

func testFullRing(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	post(t, x.consumer, receives)
	wantCode(t, "post one receive too many", x.consumer.PostReceive(0, 1, 0), status.Full)
	for range receives {
		send(t, x.producer, []byte("x"), nil)
	}
	wantCode(t, "post while nothing was polled", x.consumer.PostReceive(0, 1, 0), status.Full)
	awaitReceived(t, x.consumer)
	if err := x.consumer.PostReceive(0, 1, 0); err != nil {
		t.Errorf("post after a poll: %v", err)
	}
	wantCode(t, "post one receive too many again", x.consumer.PostReceive(0, 1, 0), status.Full)
}

// testRounds goes round the ring many times with one message at a time.
func testRounds(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	post(t, x.consumer, receives)
	message := make([]byte, 8)
	for i := range uint64(20 * receives) {
		binary.LittleEndian.PutUint64(message, i)
		send(t, x.producer, message, nil)
		got := awaitReceived(t, x.consumer)
		if value := binary.LittleEndian.Uint64(x.consumer.Memory()[got.Offset:]); value != i || got.UserData != i%receives {
			t.Fatalf("message %d arrived as %d in receive %d", i, value, got.UserData)
		}
		if err := x.consumer.PostReceive(got.Offset, bufferSize, got.UserData); err != nil {
			t.Fatal(err)
		}
		x.consumer.Flush()
	}
}

func testPartialPoll(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	post(t, x.consumer, receives)
	for range 5 {
		send(t, x.producer, []byte("x"), nil)
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

func testOddSize(t *testing.T, from, to comch.Connection) {
	consumer := newConsumer(t, to, comch.ConsumerConfig{Receives: 3, MemorySize: 3 * bufferSize})
	producer := newProducer(t, from, consumer.ID())
	post(t, consumer, 3)
	wantCode(t, "post a fourth receive", consumer.PostReceive(0, 1, 0), status.Full)
	for i := range uint64(20) {
		send(t, producer, []byte{byte(i)}, nil)
		got := awaitReceived(t, consumer)
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
}
