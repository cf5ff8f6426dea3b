// SPDX-License-Identifier: Apache-2.0

package contextstest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/inorder"
	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch/comchtest"
	"github.com/zc-relay/zc-relay/pkg/comch/contexts"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func (s *suite) testContextFastPath(t *testing.T) {
	for name, test := range map[string]func(l *link, from, to *contexts.Connection){
		"CarriesEveryMixOfBufferAndImmediate": testMixes,
		"CompletesReceivesOnlyWithAMessage":   testReceiveWaits,
		"QueuesSendsUntilThereIsAReceive":     testSendWaits,
		"KeepsTheOrderOfSubmission":           testFastPathOrder,
		"RejectsWhatIsLongerThanTheBuffer":    testLongerThanBuffer,
		"RejectsWhatNoBufferCouldHold":        testImpossibleMessages,
		"RejectsBuffersOutsideTheMemory":      testBuffersOutside,
		"ReceivesIntoTheApplicationsMemory":   testApplicationMemory,
		"FailsWithoutSuchAConsumer":           testUnknownConsumer,
		"FailsWhenTheConsumerStops":           testExpiredConsumer,
		"ReportsTheSender":                    testWhoSent,
		"ServesManyConsumersByOneProducer":    testManyConsumers,
	} {
		t.Run(name, func(t *testing.T) { s.bothLinks(t, test) })
	}
}

func testMixes(l *link, _, _ *contexts.Connection) {
	full := strings.Repeat("f", bufferSize)
	immediate := strings.Repeat("i", l.suite.Capabilities.MaxImmediateLength)
	for _, buffer := range []uint32{0, 1, bufferSize} {
		for _, message := range []string{"", "m", full} {
			if len(message) > int(buffer) {
				continue
			}
			for _, extra := range []string{"", "x", immediate} {
				l.post(3, buffer)
				l.send(message, extra)
				l.awaitOutcomes(1, 0, 1, 0)
				got := l.receiver.received[0]
				if string(got.Data()) != message || string(got.Immediate()) != extra {
					l.t.Errorf("sent %q and %q to a buffer of %d bytes, received %q and %q",
						message, extra, buffer, got.Data(), got.Immediate())
				}
				l.free()
			}
		}
	}
}

func testApplicationMemory(l *link, from, to *contexts.Connection) {
	region := comchtest.Allocate(l.t, memorySize)
	_, err := contexts.NewConsumerOnMemory(to, nil)
	wantCode(l.t, "create a consumer on no memory", err, status.InvalidValue)
	consumer, err := contexts.NewConsumerOnMemory(to, region)
	if !l.suite.Capabilities.ConsumerMemory {
		wantCode(l.t, "create a consumer with memory", err, status.NotSupported)
		return
	}
	l.must(err)
	r := &receiver{Consumer: consumer}
	l.must(consumer.Configure(r.config()))
	l.must(consumer.Start(l.engine))
	l.awaitState(consumer, progress.Running)
	task, err := consumer.AllocateReceive(100, 50)
	l.must(err)
	l.must(task.Submit())
	l.sendTo(consumer.ID(), "hello", "")
	l.await("the message", func() bool { return len(r.received) == 1 })
	if got := string(region.Bytes()[100:105]); got != "hello" || string(task.Data()) != "hello" {
		l.t.Errorf("the memory holds %q, the task %q", got, task.Data())
	}
	l.must(task.Free())
	l.await("the completion of the send", func() bool { return len(l.transmitter.sent) == 1 })
	l.free()
	l.stopAndWait(consumer)
}

func testReceiveWaits(l *link, _, _ *contexts.Connection) {
	l.post(0, bufferSize)
	l.post(1, bufferSize)
	l.settle()
	l.awaitOutcomes(0, 0, 0, 0)
	l.send("first", "")
	l.awaitOutcomes(1, 0, 1, 0)
	l.settle()
	l.awaitOutcomes(1, 0, 1, 0)
	l.send("second", "")
	l.awaitOutcomes(2, 0, 2, 0)
	if string(l.receiver.received[1].Data()) != "second" ||
		string(l.receiver.Memory()[bufferSize:][:6]) != "second" {
		l.t.Errorf("received %q", l.receiver.received[1].Data())
	}
	l.free()
}

func testSendWaits(l *link, _, _ *contexts.Connection) {
	l.send("early", "")
	l.settle()
	l.awaitOutcomes(0, 0, 0, 0)
	l.post(0, bufferSize)
	l.awaitOutcomes(1, 0, 1, 0)
	l.free()
}

func testFastPathOrder(l *link, _, _ *contexts.Connection) {
	const rounds = 40
	next := 0
	for round := range rounds {
		var tasks []*contexts.ProducerSendTask
		for i := range sendTasks {
			tasks = append(tasks, l.send(fmt.Sprint(round*sendTasks+i), ""))
		}
		for i := range sendTasks {
			l.post(uint32(i), bufferSize)
		}
		l.awaitOutcomes(sendTasks, 0, sendTasks, 0)
		for i := range sendTasks {
			if l.transmitter.sent[i] != tasks[i] {
				l.t.Fatalf("send %d completed out of order", i)
			}
			if got := string(l.receiver.received[i].Data()); got != fmt.Sprint(next) {
				l.t.Fatalf("received %q, want %d", got, next)
			}
			next++
		}
		l.free()
	}
}

func testLongerThanBuffer(l *link, _, _ *contexts.Connection) {
	l.post(1, 5)
	l.send("123456", "")
	l.awaitOutcomes(0, 0, 0, 1)
	wantCode(l.t, "message longer than the posted buffer", l.transmitter.errs[0],
		status.InvalidValue)
	l.send("12345", "")
	l.awaitOutcomes(1, 0, 1, 1)
	if got := string(l.receiver.received[0].Data()); got != "12345" {
		l.t.Errorf("received %q", got)
	}
	if got := l.receiver.Memory()[bufferSize+5]; got != 0 {
		l.t.Errorf("the byte behind the buffer is %#x", got)
	}
	if l.transmitter.State() != progress.Running || l.receiver.State() != progress.Running {
		l.t.Error("a rejected message stopped a context")
	}
	l.free()
}

func testImpossibleMessages(l *link, _, _ *contexts.Connection) {
	c := l.suite.Capabilities
	_, err := l.transmitter.AllocateSend(1, make([]byte, c.MaxBufferLength+1), nil)
	wantCode(l.t, "allocate a send beyond any buffer", err, status.InvalidValue)
	_, err = l.transmitter.AllocateSend(1, nil, make([]byte, c.MaxImmediateLength+1))
	wantCode(l.t, "allocate a send with too much immediate data", err, status.InvalidValue)
	task, err := l.transmitter.AllocateSend(1, nil, nil)
	l.must(err)
	wantCode(l.t, "set too much immediate data",
		task.Set(1, nil, make([]byte, c.MaxImmediateLength+1)),
		status.InvalidValue)
	l.must(task.Free())
}

func testBuffersOutside(l *link, _, _ *contexts.Connection) {
	task, err := l.receiver.AllocateReceive(memorySize, 0)
	l.must(err)
	for _, r := range []struct{ offset, length uint32 }{
		{memorySize, 1}, {memorySize - 1, 2}, {memorySize + 1, 0}, {0, memorySize + 1},
		{0xffffffff, 0xffffffff},
	} {
		_, err := l.receiver.AllocateReceive(r.offset, r.length)
		wantCode(l.t, "allocate a receive outside the memory", err, status.InvalidValue)
		wantCode(l.t, "set a buffer outside the memory", task.SetBuffer(r.offset, r.length),
			status.InvalidValue)
	}
	l.must(task.Free())
}

func testUnknownConsumer(l *link, _, _ *contexts.Connection) {
	l.sendTo(l.receiver.ID()+100, "x", "")
	l.awaitOutcomes(0, 0, 0, 1)
	wantCode(l.t, "send to an unknown consumer", l.transmitter.errs[0], status.NotFound)
	l.post(0, bufferSize)
	l.send("known", "")
	l.awaitOutcomes(1, 0, 1, 1)
	l.free()
}

func testExpiredConsumer(l *link, _, _ *contexts.Connection) {
	id := l.receiver.ID()
	l.post(0, bufferSize)
	l.send("received", "")
	l.awaitOutcomes(1, 0, 1, 0)
	l.free()
	l.send("never received", "")
	l.settle()
	l.must(l.receiver.Stop())
	l.awaitOutcomes(0, 0, 0, 1)
	if err := l.transmitter.errs[0]; err == nil || l.transmitter.State() != progress.Running {
		l.t.Errorf("send to a consumer that stopped: %v, producer is %v", err,
			l.transmitter.State())
	}
	l.free()
	l.sendTo(id, "x", "")
	l.awaitOutcomes(0, 0, 0, 1)
	if err := l.transmitter.errs[0]; !errIsOneOf(err, status.NotFound, status.NotConnected) {
		l.t.Errorf("send to a consumer that is gone: %v", err)
	}
	l.free()
}

func testWhoSent(l *link, from, _ *contexts.Connection) {
	second := &link{harness: l.harness, receiver: l.receiver, transmitter: l.startTransmitter(from)}
	for i, sender := range []*link{l, second, l} {
		l.post(uint32(i), bufferSize)
		sender.send("x", "")
		l.await("the message", func() bool { return len(l.receiver.received) == i+1 })
	}
	var ids []uint32
	for _, task := range l.receiver.received {
		ids = append(ids, task.Producer())
	}
	consumer := l.receiver.ID()
	want := []uint32{l.transmitter.ID(consumer), second.transmitter.ID(consumer),
		l.transmitter.ID(consumer)}
	if ids[0] == 0 || ids[0] == ids[1] || fmt.Sprint(ids) != fmt.Sprint(want) {
		l.t.Errorf("messages arrived from producers %v, want %v", ids, want)
	}
	if got := l.transmitter.ID(consumer + 100); got != 0 {
		l.t.Errorf("producer has the id %d at a consumer that it never sent to", got)
	}
	l.awaitOutcomes(3, 0, 2, 0)
	l.await("the other producer's task", func() bool { return len(second.transmitter.sent) == 1 })
	l.must(second.transmitter.sent[0].Free())
	l.free()
}

func testManyConsumers(l *link, _, to *contexts.Connection) {
	links := []*link{l}
	for range 3 {
		links = append(links, &link{harness: l.harness, receiver: l.startReceiver(to),
			transmitter: l.transmitter})
	}
	for i, x := range links {
		x.send(fmt.Sprint("to ", i), "")
	}
	for i := len(links) - 1; i >= 0; i-- {
		links[i].post(0, bufferSize)
		l.await("the message", func() bool { return len(links[i].receiver.received) == 1 })
	}
	l.await("the completion of all sends",
		func() bool { return len(l.transmitter.sent) == len(links) })
	for i, x := range links {
		if got := string(x.receiver.received[0].Data()); got != fmt.Sprint("to ", i) {
			l.t.Errorf("consumer %d received %q", i, got)
		}
		x.free()
	}
}

func errIsOneOf(err error, codes ...status.Code) bool {
	for _, code := range codes {
		if status.CodeOf(err) == code {
			return true
		}
	}
	return false
}

func (s *suite) testContextEnding(t *testing.T) {
	for name, test := range map[string]func(l *link, from, to *contexts.Connection){
		"StopFlushesPostedReceives":  testStopFlushes,
		"StopKeepsArrivedMessages":   testStopKeepsArrived,
		"StopFlushesQueuedSends":     testStopFlushesSends,
		"StopWorksInsideCallbacks":   testStopInCallback,
		"WithoutTasksStopIsComplete": testStopWithoutTasks,
	} {
		t.Run(name, func(t *testing.T) { s.bothLinks(t, test) })
	}
	t.Run("ConsumersAndMessagesKeepTheirOrder", s.testContextOrder)
	t.Run("BrokenConnectionsStopEverything", s.testFatal)
	t.Run("BrokenConnectionsKeepArrivedMessages", s.testFatalKeepsArrived)
	t.Run("BrokenConnectionsFailControlSends", s.testFatalSends)
	t.Run("ClientsWaitForTheirFastPath", s.testClientWaitsForChildren)
}

func testStopFlushes(l *link, _, _ *contexts.Connection) {
	tasks := []*contexts.ReceiveTask{l.post(0, bufferSize), l.post(1, bufferSize), l.post(2, 0)}
	l.must(l.receiver.Stop())
	l.awaitOutcomes(0, 3, 0, 0)
	for i, task := range tasks {
		wantCode(l.t, "receive that was flushed", l.receiver.errs[i], status.Shutdown)
		if l.receiver.failed[i] != task || len(task.Data()) != 0 || task.Producer() != 0 {
			l.t.Errorf("receive %d was flushed out of order or has data", i)
		}
	}
	l.send("nobody listens", "")
	l.awaitOutcomes(0, 3, 0, 1)
	if got := l.receiver.State(); got != progress.Stopping {
		l.t.Errorf("consumer with tasks is %v", got)
	}
	l.free()
	l.awaitState(l.receiver, progress.Idle)
	wantIdle(l.t, l.receiver)
}

// testStopKeepsArrived stops a consumer before it polls a message whose send has completed.
func testStopKeepsArrived(l *link, from, _ *contexts.Connection) {
	l.post(0, bufferSize)
	l.post(1, bufferSize)
	l.send("warm-up", "")
	l.awaitOutcomes(1, 0, 1, 0)
	other := l.suite.newHarness(l.t) // makes progress for the sender alone
	transmitter := &transmitter{}
	producer, err := contexts.NewProducer(from)
	l.must(err)
	transmitter.Producer = producer
	l.must(producer.Configure(transmitter.config()))
	l.must(producer.Start(other.engine))
	task, err := producer.AllocateSend(l.receiver.ID(), []byte("arrived"), nil)
	l.must(err)
	l.must(task.Submit())
	other.await("the send", func() bool { return len(transmitter.sent) == 1 })
	l.must(l.receiver.Stop())
	l.awaitOutcomes(2, 0, 1, 0)
	if got := string(l.receiver.received[1].Data()); got != "arrived" {
		l.t.Errorf("received %q", got)
	}
	l.must(task.Free())
	l.must(producer.Stop())
	l.free()
}

func testStopFlushesSends(l *link, _, _ *contexts.Connection) {
	first, second := l.send("first", ""), l.send("second", "")
	l.settle()
	l.must(l.transmitter.Stop())
	l.awaitOutcomes(0, 0, 0, 2)
	if l.transmitter.failed[0] != first || l.transmitter.failed[1] != second {
		l.t.Error("sends were flushed out of order")
	}
	for _, err := range l.transmitter.errs {
		wantCode(l.t, "send that was flushed", err, status.Shutdown)
	}
	if got := l.transmitter.State(); got != progress.Stopping {
		l.t.Errorf("producer with tasks is %v", got)
	}
	l.post(0, bufferSize)
	l.free()
	l.awaitState(l.transmitter, progress.Idle)
	l.awaitOutcomes(0, 0, 0, 0) // nothing was sent
	l.must(l.receiver.Stop())
	l.awaitOutcomes(0, 1, 0, 0)
	l.free()
}

// testStopInCallback frees the only task and stops the context in one callback.
func testStopInCallback(l *link, _, _ *contexts.Connection) {
	l.must(l.receiver.Stop())
	l.must(l.transmitter.Stop())
	receiving, sending := l.receiver.config(), l.transmitter.config()
	receiving.Received = func(t *contexts.ReceiveTask) {
		l.must(t.Free())
		l.must(l.receiver.Stop())
	}
	sending.Sent = func(t *contexts.ProducerSendTask) {
		l.must(t.Free())
		l.must(l.transmitter.Stop())
	}
	l.must(l.receiver.Configure(receiving))
	l.must(l.transmitter.Configure(sending))
	l.must(l.receiver.Start(l.engine))
	l.must(l.transmitter.Start(l.engine))
	l.awaitState(l.receiver, progress.Running)
	l.post(0, bufferSize)
	l.send("last", "")
	l.awaitState(l.receiver, progress.Idle)
	l.awaitState(l.transmitter, progress.Idle)
}

func testStopWithoutTasks(l *link, _, _ *contexts.Connection) {
	l.must(l.receiver.Stop())
	l.must(l.transmitter.Stop())
	wantIdle(l.t, l.receiver)
	wantIdle(l.t, l.transmitter)
	l.must(l.receiver.Destroy())
	l.must(l.transmitter.Destroy())
}

// brokenClient is a client with a consumer and a producer, whose server is about to vanish.
type brokenClient struct {
	*link
	client   *recordingClient
	atClient *contexts.Connection
}

// newBrokenClient returns a client, and two functions of its server: vanish aborts the connection,
// and deliver sends a message to the client's consumer. The server uses the blocking calls of the
// provider, because contexts cannot abort.
func (s *suite) newBrokenClient(t *testing.T) (w *brokenClient, vanish func(),
	deliver func(text string)) {
	t.Helper()
	h := s.newHarness(t)
	config := s.ServerConfig()
	server := s.Listen(t, config)
	client := h.startClient(config.Name)
	peer, err := server.Accept(testContext(t))
	h.must(err)
	t.Cleanup(peer.Abort)
	atClient, err := client.Connection()
	h.must(err)
	l := &link{harness: h, receiver: h.startReceiver(atClient),
		transmitter: h.startTransmitter(atClient)}
	deliver = func(text string) {
		producer := comchtest.NewProducer(t, peer, l.receiver.ID())
		comchtest.Send(t, producer, []byte(text), nil)
	}
	return &brokenClient{l, client, atClient}, peer.Abort, deliver
}

func (s *suite) testFatal(t *testing.T) {
	w, vanish, _ := s.newBrokenClient(t)
	w.post(0, bufferSize)
	w.post(1, bufferSize)
	w.sendTo(12345, "x", "")
	vanish()
	w.awaitOutcomes(0, 2, 0, 1)
	for _, err := range w.receiver.errs {
		wantCode(t, "receive when the peer vanished", err, status.NotConnected)
	}
	for what, context := range map[string]stateful{
		"consumer": w.receiver, "producer": w.transmitter, "client": w.client,
	} {
		w.awaitState(context, progress.Stopping)
		if context.Err() == nil {
			t.Errorf("%s is stopping without an error", what)
		}
		w.must(context.Stop()) // allowed while stopping
	}
	wantCode(t, "why the client is stopping", w.client.Err(), status.ConnectionReset)
	w.free()
	w.awaitState(w.receiver, progress.Idle)
	w.awaitState(w.transmitter, progress.Idle)
	w.awaitState(w.client, progress.Idle)
}

func (s *suite) testFatalKeepsArrived(t *testing.T) {
	w, vanish, deliver := s.newBrokenClient(t)
	for i := range uint32(4) {
		w.post(i, bufferSize)
	}
	for i := range 3 {
		deliver(fmt.Sprint("word ", i))
	}
	vanish()
	w.awaitOutcomes(3, 1, 0, 0)
	for i, task := range w.receiver.received {
		if got := string(task.Data()); got != fmt.Sprint("word ", i) {
			t.Errorf("received %q", got)
		}
	}
	w.free()
}

func (s *suite) testFatalSends(t *testing.T) {
	w, vanish, _ := s.newBrokenClient(t)
	vanish()
	w.await("the end of the client", func() bool { return w.client.State() == progress.Stopping })
	w.submitMessage(w.client, w.atClient, "into the void")
	w.await("the failure", func() bool { return len(w.client.completions) == 1 })
	if w.client.completions[0].err == nil {
		t.Error("a message was sent after the connection ended")
	}
	w.client.free(t)
}

// testClientWaitsForChildren checks that a client whose server is gone is stopping until its
// consumer is idle.
func (s *suite) testClientWaitsForChildren(t *testing.T) {
	w, vanish, _ := s.newBrokenClient(t)
	w.post(0, bufferSize)
	vanish()
	w.awaitOutcomes(0, 1, 0, 0)
	w.awaitState(w.transmitter, progress.Idle)
	w.settle()
	if got := w.client.State(); got != progress.Stopping {
		t.Errorf("client with a stopping consumer is %v", got)
	}
	w.free()
	w.awaitState(w.client, progress.Idle)
}

// testContextOrder submits messages around the beginnings and ends of consumers, without waiting
// for any of them.
func (s *suite) testContextOrder(t *testing.T) {
	defer func(former time.Duration) { inorder.Patience = former }(inorder.Patience)
	inorder.Patience = testkit.Patience
	h := s.newHarness(t)
	// The server has room for all messages: the one engine is not progressed all the time.
	p := h.join(h.startServer(func(c *contexts.ServerConfig) {
		c.ReceiveQueue = s.Capabilities.MaxReceiveQueue
	}))
	var did []string
	free := sendTasks
	awaitFree := func(n int) {
		p.await("messages are sent", func() bool {
			free += len(p.client.completions)
			p.client.free(t)
			return free >= n
		})
	}
	send := func() {
		awaitFree(1)
		free--
		text := fmt.Sprintf("message %d", len(did))
		p.submitMessage(p.client, p.atClient, text)
		did = append(did, text)
	}
	for range 20 {
		send()
		r := p.newReceiver(p.atClient)
		p.must(r.Start(p.engine))
		did = append(did, "created")
		send()
		p.awaitState(r, progress.Running)
		awaitFree(sendTasks)
		for range sendTasks - 1 { // a queue of them
			send()
		}
		p.must(r.Stop())
		did = append(did, "expired")
		send()
		p.must(r.Destroy())
	}
	p.await("the server has seen everything",
		func() bool { return len(p.server.seen) >= len(did) })
	if !slices.Equal(p.server.seen, did) {
		t.Errorf("the client did\n%q\nand the server saw\n%q", did, p.server.seen)
	}
	awaitFree(sendTasks)
}
