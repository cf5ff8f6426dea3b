// SPDX-License-Identifier: Apache-2.0

package contextstest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/comchtest"
	"github.com/zc-relay/zc-relay/pkg/comch/contexts"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

const dpaUserData = 0xd9a

func (s *suite) testMsgQ(t *testing.T) {
	if !s.Capabilities.MsgQ {
		provider, err := comch.AsMsgQProvider(s.Provider)
		if err == nil {
			_, err = provider.NewDPA(comch.DPAConfig{Device: s.Device})
		}
		testkit.SkipIfNotSupported(t, "create DPA", err)
		t.Fatal("the device has a DPA, but its capabilities deny message queues")
	}
	t.Run("GoesOneWay", s.testMsgQDirection)
	t.Run("KeepsItsDPA", s.testMsgQInUse)
	t.Run("IsStartedAndStopped", s.testMsgQLife)
	t.Run("CarriesImmediateDataOnly", s.testMsgQImmediateOnly)
	t.Run("IsBounded", s.testMsgQBounds)
	t.Run("ReachesTheDPAAndBack", s.testMsgQEcho)
	t.Run("AcksLetMessagesArrive", s.testDPAAck)
	t.Run("WakesForRoom", s.testDPAWakesForRoom)
	t.Run("CompletesWhatWasRequested", s.testDPACompletions)
	t.Run("CopiesBeforeItSends", s.testDMACopy)
	t.Run("RejectsImpossibleCopies", s.testBadDMACopies)
	t.Run("FailsWithoutSuchAConsumer", s.testDPAUnknownConsumer)
}

// msgQProvider is the provider of a device whose capabilities include MsgQ.
func (s *suite) msgQProvider(t *testing.T) comch.MsgQProvider {
	t.Helper()
	provider, err := comch.AsMsgQProvider(s.Provider)
	if err != nil {
		t.Fatal(err)
	}
	return provider
}

func (s *suite) newDPA(t *testing.T) comch.DPA {
	t.Helper()
	dpa, err := s.msgQProvider(t).NewDPA(comch.DPAConfig{Device: s.Device})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dpa.Close(); err != nil {
			t.Errorf("close DPA: %v", err)
		}
	})
	return dpa
}

func (s *suite) newMsgQ(t *testing.T, dpa comch.DPA, direction comch.MsgQDirection) comch.MsgQ {
	t.Helper()
	queue, err := s.msgQProvider(t).NewMsgQ(comch.MsgQConfig{DPA: dpa, Direction: direction})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := queue.Close(); err != nil {
			t.Errorf("close message queue: %v", err)
		}
	})
	return queue
}

// startMsgQ returns a started queue for contexts.
func (s *suite) startMsgQ(
	h *harness, dpa comch.DPA, direction comch.MsgQDirection,
) *contexts.MsgQ {
	h.t.Helper()
	queue, err := contexts.NewMsgQ(s.Provider)
	h.must(err)
	h.must(queue.Configure(comch.MsgQConfig{DPA: dpa, Direction: direction}))
	h.must(queue.Start())
	h.t.Cleanup(func() {
		if err := errors.Join(queue.Stop(), queue.Destroy()); err != nil {
			h.t.Errorf("end message queue: %v", err)
		}
	})
	return queue
}

// dpaQueue is a comch.MsgQ or a contexts.MsgQ.
type dpaQueue interface {
	NewDPAConsumer(ctx context.Context, receives int) (comch.DPAConsumer, error)
	NewDPAProducer(ctx context.Context, sends int, userData uint64) (comch.DPAProducer, error)
}

func newDPAConsumer(t *testing.T, queue dpaQueue, receives int) comch.DPAConsumer {
	t.Helper()
	consumer, err := queue.NewDPAConsumer(testContext(t), receives)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = consumer.Close() })
	return consumer
}

func newDPAProducer(t *testing.T, queue dpaQueue, sends int) comch.DPAProducer {
	t.Helper()
	producer, err := queue.NewDPAProducer(testContext(t), sends, dpaUserData)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = producer.Close() })
	return producer
}

// newCPUConsumer returns a CPU consumer with the given number of posted receives.
func newCPUConsumer(t *testing.T, queue comch.MsgQ, posted int) comch.Consumer {
	t.Helper()
	consumer, err := queue.NewConsumer(testContext(t), comch.ConsumerConfig{Receives: receives})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = consumer.Close() })
	for range posted {
		if err := consumer.PostReceive(0, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	consumer.Flush()
	return consumer
}

// runOnDPA starts a kernel that runs f once, and waits until it has.
func runOnDPA(t *testing.T, dpa comch.DPA, f func()) {
	t.Helper()
	done := make(chan struct{})
	ran := false
	err := dpa.Start(func() int {
		if ran {
			return 0
		}
		ran = true
		f()
		close(done)
		return 1
	})
	if err != nil {
		t.Fatal(err)
	}
	testkit.Receive(t, "the kernel is called", done)
}

func (s *suite) testMsgQDirection(t *testing.T) {
	dpa := s.newDPA(t)
	ctx := testContext(t)
	toDPA, fromDPA := s.newMsgQ(t, dpa, comch.DPAConsumers), s.newMsgQ(t, dpa, comch.DPAProducers)
	_, err := toDPA.NewConsumer(ctx, comch.ConsumerConfig{Receives: 1})
	wantCode(t, "create a CPU consumer on a queue to the DPA", err, status.NotSupported)
	_, err = toDPA.NewDPAProducer(ctx, 1, 0)
	wantCode(t, "create a DPA producer on a queue to the DPA", err, status.NotSupported)
	_, err = fromDPA.NewProducer(ctx, 1)
	wantCode(t, "create a CPU producer on a queue from the DPA", err, status.NotSupported)
	_, err = fromDPA.NewDPAConsumer(ctx, 1)
	wantCode(t, "create a DPA consumer on a queue from the DPA", err, status.NotSupported)
	for _, config := range []comch.MsgQConfig{
		{Direction: comch.DPAConsumers}, {DPA: dpa}, {DPA: dpa, Direction: 9},
		{DPA: dpa, Direction: comch.DPAConsumers, MaxConsumers: -1},
	} {
		_, err := s.msgQProvider(t).NewMsgQ(config)
		wantCode(t, "create an impossible message queue", err, status.InvalidValue)
	}
}

func (s *suite) testMsgQInUse(t *testing.T) {
	dpa := s.newDPA(t)
	queue := s.newMsgQ(t, dpa, comch.DPAProducers)
	wantCode(t, "close a DPA with a message queue", dpa.Close(), status.InUse)
	consumer, producer := newCPUConsumer(t, queue, 1), newDPAProducer(t, queue, 1)
	wantCode(t, "close a message queue with both", queue.Close(), status.InUse)
	closeAll(t, consumer, consumer)
	wantCode(t, "close a message queue with a DPA producer", queue.Close(), status.InUse)
	closeAll(t, producer, producer, queue, queue)
	_, err := queue.NewConsumer(testContext(t), comch.ConsumerConfig{Receives: 1})
	wantCode(t, "create a consumer on a closed queue", err, status.BadState)
	closeAll(t, dpa, dpa)
	wantCode(t, "start a closed DPA", dpa.Start(func() int { return 0 }), status.BadState)
	_, err = s.msgQProvider(t).NewMsgQ(comch.MsgQConfig{DPA: dpa, Direction: comch.DPAConsumers})
	wantCode(t, "create a message queue to a closed DPA", err, status.BadState)
	second := s.newDPA(t)
	wantCode(t, "start a DPA without kernel", second.Start(nil), status.InvalidValue)
	runOnDPA(t, second, func() {})
	wantCode(t, "start a DPA twice", second.Start(func() int { return 0 }), status.BadState)
}

// testMsgQLife leads a queue through the states of the guide, and once more in the other direction.
func (s *suite) testMsgQLife(t *testing.T) {
	dpa := s.newDPA(t)
	h := s.newHarness(t)
	queue, err := contexts.NewMsgQ(s.Provider)
	h.must(err)
	wantCode(t, "start a queue that is not configured", queue.Start(), status.InvalidValue)
	wantCode(t, "stop a queue that was not started", queue.Stop(), status.BadState)
	_, err = contexts.NewMsgQConsumer(queue)
	wantCode(t, "create a consumer on a queue that was not started", err, status.BadState)

	config := comch.MsgQConfig{DPA: dpa, Direction: comch.DPAProducers}
	h.must(queue.Configure(config))
	h.must(queue.Start())
	wantCode(t, "start a started queue", queue.Start(), status.BadState)
	wantCode(t, "configure a started queue", queue.Configure(config), status.BadState)
	wantCode(t, "destroy a started queue", queue.Destroy(), status.BadState)
	consumer, err := contexts.NewMsgQConsumer(queue)
	h.must(err)
	h.must(consumer.Configure(new(receiver).config()))
	h.must(consumer.Start(h.engine))
	wantCode(t, "stop a queue with a starting consumer", queue.Stop(), status.InUse)
	h.awaitState(consumer, progress.Running)
	wantCode(t, "stop a queue with a running consumer", queue.Stop(), status.InUse)
	h.must(consumer.Stop())
	outbound, err := queue.NewDPAProducer(testContext(t), 1, 0)
	h.must(err)
	wantCode(t, "stop a queue with a DPA producer", queue.Stop(), status.InUse)
	h.must(outbound.Close())
	h.must(queue.Stop())
	wantCode(t, "start a consumer of a stopped queue", consumer.Start(h.engine), status.BadState)
	_, err = queue.NewDPAProducer(testContext(t), 1, 0)
	wantCode(t, "create a DPA producer on a stopped queue", err, status.BadState)

	config.Direction = comch.DPAConsumers
	h.must(queue.Configure(config))
	h.must(queue.Start())
	inbound, err := queue.NewDPAConsumer(testContext(t), 1)
	h.must(err)
	producer, err := contexts.NewMsgQProducer(queue)
	h.must(err)
	h.must(producer.Configure(new(transmitter).config()))
	h.must(producer.Start(h.engine))
	h.must(inbound.Close())
	wantCode(t, "stop a queue with a running producer", queue.Stop(), status.InUse)
	h.must(producer.Stop())
	h.must(queue.Stop())
	h.must(queue.Destroy())
	wantCode(t, "configure a destroyed queue", queue.Configure(config), status.BadState)
	wantCode(t, "start a destroyed queue", queue.Start(), status.BadState)
	wantCode(t, "destroy a queue twice", queue.Destroy(), status.BadState)
}

func (s *suite) testMsgQImmediateOnly(t *testing.T) {
	dpa := s.newDPA(t)
	toDPA, fromDPA := s.newMsgQ(t, dpa, comch.DPAConsumers), s.newMsgQ(t, dpa, comch.DPAProducers)
	_, err := fromDPA.NewConsumer(testContext(t), comch.ConsumerConfig{Receives: 1, MemorySize: 1})
	wantCode(t, "create a CPU consumer with memory", err, status.InvalidValue)
	consumer := newCPUConsumer(t, fromDPA, 0)
	wantCode(t, "post a buffer", consumer.PostReceive(0, 1, 0), status.InvalidValue)
	if len(consumer.Memory()) != 0 {
		t.Errorf("consumer has %d bytes of memory", len(consumer.Memory()))
	}
	target := newDPAConsumer(t, toDPA, 1)
	producer, err := toDPA.NewProducer(testContext(t), target.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(t, producer)
	wantCode(t, "send a buffer", producer.Send([]byte("x"), nil), status.InvalidValue)
	wantCode(t, "send too much immediate data",
		producer.Send(nil, make([]byte, comch.MaxImmediateLength+1)),
		status.InvalidValue)

	h := s.newHarness(t)
	receiving, err := contexts.NewMsgQConsumer(s.startMsgQ(h, dpa, comch.DPAProducers))
	h.must(err)
	h.must(receiving.Configure(new(receiver).config()))
	h.must(receiving.Start(h.engine))
	h.awaitState(receiving, progress.Running)
	_, err = receiving.AllocateReceive(0, 1)
	wantCode(t, "allocate a receive with a buffer", err, status.InvalidValue)
	sending, err := contexts.NewMsgQProducer(s.startMsgQ(h, dpa, comch.DPAConsumers))
	h.must(err)
	h.must(sending.Configure(new(transmitter).config()))
	h.must(sending.Start(h.engine))
	_, err = sending.AllocateSend(target.ID(), []byte("x"), nil)
	wantCode(t, "allocate a send with a buffer", err, status.InvalidValue)
	h.must(receiving.Stop())
	h.must(sending.Stop())
}

func (s *suite) testMsgQBounds(t *testing.T) {
	dpa := s.newDPA(t)
	queue, err := s.msgQProvider(t).NewMsgQ(comch.MsgQConfig{
		DPA: dpa, Direction: comch.DPAConsumers, MaxConsumers: 1, MaxProducers: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(t, queue)
	_, err = queue.NewDPAConsumer(testContext(t), 0)
	wantCode(t, "create a DPA consumer without receives", err, status.InvalidValue)
	consumer := newDPAConsumer(t, queue, 1)
	defer closeAll(t, consumer)
	_, err = queue.NewDPAConsumer(testContext(t), 1)
	wantCode(t, "create one DPA consumer too many", err, status.Full)
	producer, err := queue.NewProducer(testContext(t), consumer.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(t, producer)
	_, err = queue.NewProducer(testContext(t), consumer.ID())
	wantCode(t, "create one producer too many", err, status.Full)
}

// testMsgQEcho sends from CPU contexts to the DPA, whose kernel sends the messages back, with
// pauses in which all threads fall asleep.
func (s *suite) testMsgQEcho(t *testing.T) {
	dpa := s.newDPA(t)
	h := s.newHarness(t)
	toDPA := s.startMsgQ(h, dpa, comch.DPAConsumers)
	fromDPA := s.startMsgQ(h, dpa, comch.DPAProducers)
	inbound, outbound := newDPAConsumer(t, toDPA, receives), newDPAProducer(t, fromDPA, receives)
	r := &receiver{}
	var err error
	r.Consumer, err = contexts.NewMsgQConsumer(fromDPA)
	h.must(err)
	h.must(r.Configure(r.config()))
	h.must(r.Start(h.engine))
	h.awaitState(r, progress.Running)
	p := &transmitter{}
	p.Producer, err = contexts.NewMsgQProducer(toDPA)
	h.must(err)
	h.must(p.Configure(p.config()))
	h.must(p.Start(h.engine))
	l := &link{harness: h, receiver: r, transmitter: p}

	failures := make(chan error, 100)
	if err := dpa.Start(echoKernel(inbound, outbound, r.ID(), failures)); err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		l.post(0, 0)
		l.sendTo(inbound.ID(), "", fmt.Sprint("message ", i))
		l.awaitOutcomes(1, 0, 1, 0)
		task := r.received[0]
		if got, want := string(task.Immediate()), fmt.Sprintf("%d: message %d", p.ID(inbound.ID()),
			i); got != want {
			t.Fatalf("received %q, want %q", got, want)
		}
		l.free()
		if i%10 == 0 {
			time.Sleep(2 * time.Millisecond)
		}
	}
	h.must(r.Stop())
	h.must(p.Stop())
	select {
	case err := <-failures:
		t.Errorf("kernel: %v", err)
	default:
	}
}

// echoKernel returns a kernel that sends each message back with its producer's id in front.
func echoKernel(
	inbound comch.DPAConsumer, outbound comch.DPAProducer, replies comch.ConsumerID,
	failures chan<- error,
) comch.DPAKernel {
	var received [4]comch.Received
	started := false
	return func() int {
		if !started {
			started = true
			if err := inbound.Ack(receives); err != nil {
				failures <- err
			}
		}
		n := inbound.Poll(received[:])
		for i := range received[:n] {
			r := &received[i]
			text := fmt.Appendf(nil, "%d: %s", r.Producer, r.Immediate[:r.ImmediateLength])
			if err := outbound.PostSendImmediate(replies, text, false); err != nil {
				failures <- err
			}
		}
		if n > 0 {
			if err := inbound.Ack(n); err != nil {
				failures <- err
			}
		}
		return n
	}
}

func (s *suite) testDPAAck(t *testing.T) {
	dpa := s.newDPA(t)
	queue := s.newMsgQ(t, dpa, comch.DPAConsumers)
	consumer := newDPAConsumer(t, queue, 2)
	producer, err := queue.NewProducer(testContext(t), consumer.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(t, producer)
	wantCode(t, "send before an ack", producer.Send(nil, []byte("x")), status.Again)
	runOnDPA(t, dpa, func() {
		wantCode(t, "ack more than the queue holds", consumer.Ack(3), status.Full)
		wantCode(t, "ack nothing", consumer.Ack(0), status.InvalidValue)
		if err := consumer.Ack(2); err != nil {
			t.Error(err)
		}
		wantCode(t, "ack a full queue", consumer.Ack(1), status.Full)
		for _, text := range []string{"first", "second"} {
			if err := producer.Send(nil, []byte(text)); err != nil {
				t.Error(err)
			}
		}
		wantCode(t, "send more than was acked", producer.Send(nil, []byte("x")), status.Again)
		wantCode(t, "ack before messages were polled", consumer.Ack(1), status.Full)
		var received [3]comch.Received
		if n := consumer.Poll(received[:]); n != 2 ||
			string(received[0].Immediate[:5]) != "first" ||
			string(received[1].Immediate[:6]) != "second" ||
			received[0].Producer != producer.ID() {
			t.Errorf("polled %d messages: %+v", n, received[:n])
		}
		if err := consumer.Ack(2); err != nil {
			t.Errorf("ack after messages were polled: %v", err)
		}
	})
}

func (s *suite) testDPACompletions(t *testing.T) {
	dpa := s.newDPA(t)
	queue := s.newMsgQ(t, dpa, comch.DPAProducers)
	consumer, producer := newCPUConsumer(t, queue, 4), newDPAProducer(t, queue, 2)
	id := consumer.ID()
	var completions [4]comch.DPACompletion
	runOnDPA(t, dpa, func() {
		if empty, err := producer.IsConsumerEmpty(id); err != nil || empty {
			t.Errorf("consumer with receives: empty %v, %v", empty, err)
		}
		wantCode(t, "send too much", producer.PostSendImmediate(id,
			make([]byte, comch.MaxImmediateLength+1), true),
			status.InvalidValue)
		for _, requested := range []bool{false, true, true} {
			if err := producer.PostSendImmediate(id, []byte("x"), requested); err != nil {
				t.Error(err)
			}
		}
		wantCode(t, "request one completion too many", producer.PostSendImmediate(id, nil, true),
			status.Full)
		if n := producer.Poll(completions[:]); n != 2 || completions[0].UserData != dpaUserData {
			t.Errorf("polled %d completions: %+v", n, completions[:n])
		}
		if n := producer.Poll(completions[:]); n != 0 {
			t.Errorf("polled %d completions that were not requested", n)
		}
		longest := bytes.Repeat([]byte("y"), comch.MaxImmediateLength)
		if err := producer.PostSendImmediate(id, longest, true); err != nil {
			t.Error(err)
		}
		if empty, err := producer.IsConsumerEmpty(id); err != nil || !empty {
			t.Errorf("consumer without receives: empty %v, %v", empty, err)
		}
		wantCode(t, "send to an empty consumer", producer.PostSendImmediate(id, nil, false),
			status.Again)
	})
	var received [5]comch.Received
	if n := consumer.Poll(received[:]); n != 4 ||
		received[3].ImmediateLength != comch.MaxImmediateLength ||
		received[3].Length != 0 {
		t.Errorf("received %d messages: %+v", n, received[:n])
	}
}

// testDPAWakesForRoom makes the kernel send whenever the consumer has room, and lets it fall asleep
// in between. A lost wake-up takes longer than the test may.
func (s *suite) testDPAWakesForRoom(t *testing.T) {
	dpa := s.newDPA(t)
	queue := s.newMsgQ(t, dpa, comch.DPAProducers)
	consumer, producer := newCPUConsumer(t, queue, 0), newDPAProducer(t, queue, 1)
	failed := make(chan error, 1)
	err := dpa.Start(func() int {
		err := producer.PostSendImmediate(consumer.ID(), []byte("x"), false)
		switch {
		case err == nil:
			return 1
		case err != error(status.Again):
			select {
			case failed <- err:
			default:
			}
		}
		return 0
	})
	if err != nil {
		t.Fatal(err)
	}
	bound := testContext(t)
	for range 100 {
		time.Sleep(time.Millisecond)
		if err := consumer.PostReceive(0, 0, 0); err != nil {
			t.Fatal(err)
		}
		consumer.Flush()
		comchtest.AwaitReceived(t, consumer)
	}
	if bound.Err() != nil {
		t.Error("only timeouts woke the kernel")
	}
	select {
	case err := <-failed:
		t.Errorf("send: %v", err)
	default:
	}
	closeAll(t, producer)
}

// testDMACopy checks the destination once the immediate message has arrived.
func (s *suite) testDMACopy(t *testing.T) {
	dpa := s.newDPA(t)
	queue := s.newMsgQ(t, dpa, comch.DPAProducers)
	consumer, producer := newCPUConsumer(t, queue, 3), newDPAProducer(t, queue, 2)
	region, other := comchtest.Allocate(t, 1<<20), comchtest.Allocate(t, 4096)
	for i := range region.Bytes() {
		region.Bytes()[i] = byte(i * 7)
	}
	destination := comch.DPABuffer{Region: region, Access: readWrite, Offset: 1 << 19}
	source := comch.DPABuffer{Region: region, Access: memory.PCIRead}
	const length = 300_000
	want := bytes.Clone(region.Bytes()[:length])
	runOnDPA(t, dpa, func() {
		if err := producer.DMACopy(consumer.ID(), destination, source, length, []byte("copied"),
			true); err != nil {
			t.Error(err)
		}
		var completions [1]comch.DPACompletion
		if n := producer.Poll(completions[:]); n != 1 || completions[0].UserData != dpaUserData {
			t.Errorf("polled %d completions: %+v", n, completions[:n])
		}
		small := comch.DPABuffer{Region: other, Access: readWrite, Offset: 4000}
		if err := producer.DMACopy(consumer.ID(), small, source, 96, nil, false); err != nil {
			t.Errorf("copy to the last byte: %v", err)
		}
		if err := producer.DMACopy(consumer.ID(), small, source, 0, []byte("0"),
			false); err != nil {
			t.Errorf("copy nothing: %v", err)
		}
		wantCode(t, "copy without a receive", producer.DMACopy(consumer.ID(), small, source, 1, nil,
			false),
			status.Again)
	})
	got := comchtest.AwaitReceived(t, consumer)
	if string(got.Immediate[:got.ImmediateLength]) != "copied" ||
		!bytes.Equal(region.Bytes()[1<<19:][:length], want) {
		t.Errorf("after message %q the destination differs from the source",
			got.Immediate[:got.ImmediateLength])
	}
	if !bytes.Equal(other.Bytes()[4000:], want[:96]) || other.Bytes()[3999] != 0 {
		t.Error("the small copy is wrong")
	}
}

func (s *suite) testBadDMACopies(t *testing.T) {
	dpa := s.newDPA(t)
	queue := s.newMsgQ(t, dpa, comch.DPAProducers)
	consumer, producer := newCPUConsumer(t, queue, 1), newDPAProducer(t, queue, 1)
	region, other := comchtest.Allocate(t, 8192), comchtest.Allocate(t, 8192)
	region.Bytes()[0] = 1
	good := comch.DPABuffer{Region: other, Access: readWrite}
	at := func(r *memory.Region, access memory.Access, offset uint64) comch.DPABuffer {
		return comch.DPABuffer{Region: r, Access: access, Offset: offset}
	}
	runOnDPA(t, dpa, func() {
		for what, c := range map[string]struct {
			destination, source comch.DPABuffer
			length              uint64
			immediate           int
			want                status.Code
		}{
			"destination that may not be written": {at(other, memory.PCIRead, 0),
				at(region, readWrite, 0), 1, 0, status.NotPermitted},
			"source that may not be read": {good, at(region, memory.PCIWrite, 0), 1, 0,
				status.NotPermitted},
			"destination outside its region": {at(other, readWrite, 8000),
				at(region, readWrite, 0), 193, 0, status.InvalidValue},
			"source outside its region": {good, at(region, readWrite, 1), 8192, 0,
				status.InvalidValue},
			"length that wraps": {good, at(region, readWrite, 1), 1<<64 - 1, 0,
				status.InvalidValue},
			"ranges that overlap": {at(region, readWrite, 100),
				at(region, readWrite, 0), 101, 0, status.InvalidValue},
			"no destination": {comch.DPABuffer{Access: readWrite},
				at(region, readWrite, 0), 1, 0, status.InvalidValue},
			"no source": {good, comch.DPABuffer{Access: readWrite}, 1, 0,
				status.InvalidValue},
			"too much immediate data": {good, at(region, readWrite, 0), 1,
				comch.MaxImmediateLength + 1, status.InvalidValue},
		} {
			err := producer.DMACopy(consumer.ID(), c.destination, c.source, c.length,
				make([]byte, c.immediate), true)
			wantCode(t, what, err, c.want)
		}
		var completions [1]comch.DPACompletion
		if n := producer.Poll(completions[:]); n != 0 {
			t.Errorf("%d rejected copies completed", n)
		}
	})
	var received [1]comch.Received
	if n := consumer.Poll(received[:]); n != 0 || other.Bytes()[0] != 0 {
		t.Error("a rejected copy copied or sent something")
	}
}

func (s *suite) testDPAUnknownConsumer(t *testing.T) {
	dpa := s.newDPA(t)
	queue := s.newMsgQ(t, dpa, comch.DPAProducers)
	consumer, producer := newCPUConsumer(t, queue, 2), newDPAProducer(t, queue, 1)
	runOnDPA(t, dpa, func() {
		wantCode(t, "send to an unknown consumer", producer.PostSendImmediate(consumer.ID()+100,
			nil, false),
			status.NotFound)
		_, err := producer.IsConsumerEmpty(consumer.ID() + 100)
		wantCode(t, "look at an unknown consumer", err, status.NotFound)
		if err := producer.PostSendImmediate(consumer.ID(), nil, false); err != nil {
			t.Error(err)
		}
		closeAll(t, consumer)
		testkit.Eventually(t, "the producer knows that the consumer has ended", func() bool {
			err := producer.PostSendImmediate(consumer.ID(), nil, false)
			return errIsOneOf(err, status.NotFound)
		})
	})
}
