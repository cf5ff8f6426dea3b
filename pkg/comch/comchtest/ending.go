package comchtest

import (
	"testing"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func (s *suite) testEnding(t *testing.T) {
	t.Run("CloseIsSeenByBothSides", func(t *testing.T) { s.bothWays(t, testClose) })
	t.Run("AbortIsSeenByBothSides", func(t *testing.T) { s.bothWays(t, testAbort) })
	t.Run("MessagesOnTheWaySurviveAbort", func(t *testing.T) { s.bothWays(t, testAbortWithMessages) })
	t.Run("NothingIsReceivedAfterOwnAbort", func(t *testing.T) { s.bothWays(t, testOwnAbortWithMessages) })
	t.Run("AbortDuringTrafficStopsBothSides", func(t *testing.T) { s.bothWays(t, testAbortDuringTraffic) })
	t.Run("WaitingCallsReturn", func(t *testing.T) { s.bothWays(t, testWaitingCalls) })
	t.Run("NothingWorksAfterTheEnd", func(t *testing.T) { s.bothWays(t, testAfterTheEnd) })
	t.Run("CanBeAbortedAndClosedTwice", func(t *testing.T) {
		p := s.connect(t)
		p.client.Abort()
		p.client.Abort()
		closeAll(t, p.client, p.client)
		awaitDone(t, p.server)
		closeAll(t, p.server, p.server)
	})
}

func testClose(t *testing.T, from, to comch.Connection) {
	if from.Err() != nil || to.Err() != nil {
		t.Errorf("errors before the end: %v, %v", from.Err(), to.Err())
	}
	closeAll(t, from)
	awaitDone(t, from)
	awaitDone(t, to)
	wantCode(t, "reason of the side that closed", from.Err(), status.Shutdown)
	wantCode(t, "reason of the other side", to.Err(), status.Shutdown)
}

func testAbort(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	back := newPath(t, to, from)
	from.Abort()
	awaitDone(t, from)
	awaitDone(t, to)
	wantCode(t, "reason of the side that aborted", from.Err(), status.ConnectionAborted)
	wantCode(t, "reason of the other side", to.Err(), status.ConnectionReset)
	for what, state := range map[string]func() progress.State{
		"consumer": x.consumer.State, "producer": x.producer.State,
		"consumer back": back.consumer.State, "producer back": back.producer.State,
	} {
		if got := state(); got == progress.Running {
			t.Errorf("%s is running after the end", what)
		}
	}
	wantCode(t, "send after the end", x.producer.Send([]byte("x"), nil), status.NotConnected)
	wantCode(t, "send back after the end", back.producer.Send([]byte("x"), nil), status.NotConnected)
	wantCode(t, "close with consumers", from.Close(), status.InUse)
	closeAll(t, x.consumer, x.producer, back.consumer, back.producer, from, to)
}

// testAbortWithMessages has the sender vanish with messages in the ring. They
// can still be polled, and their memory stays where it is.
func testAbortWithMessages(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	post(t, x.consumer, receives)
	for i := range 5 {
		send(t, x.producer, []byte{byte(i)}, nil)
	}
	from.Abort()
	awaitDone(t, to)
	for i := range 5 {
		if got := awaitReceived(t, x.consumer); x.consumer.Memory()[got.Offset] != byte(i) {
			t.Errorf("message %d arrived as %+v", i, got)
		}
	}
	var received [1]comch.Received
	if n := x.consumer.Poll(received[:]); n != 0 {
		t.Errorf("polled %d messages that were not sent", n)
	}
}

// testOwnAbortWithMessages has the receiver leave with messages in the ring.
func testOwnAbortWithMessages(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	post(t, x.consumer, receives)
	send(t, x.producer, []byte("first"), nil)
	awaitReceived(t, x.consumer)
	send(t, x.producer, []byte("second"), nil)
	to.Abort()
	var received [1]comch.Received
	if n := x.consumer.Poll(received[:]); n != 0 {
		t.Errorf("polled %d messages after aborting", n)
	}
	if !x.consumer.Arm() {
		t.Error("consumer did not arm after aborting")
	}
	x.consumer.Disarm()
}

func testAbortDuringTraffic(t *testing.T, from, to comch.Connection) {
	x := newPath(t, from, to)
	post(t, x.consumer, receives)
	started, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for sent := 0; x.producer.Send([]byte("x"), nil) != error(status.NotConnected); sent++ {
			x.producer.Flush()
			if sent == receives {
				close(started)
			}
		}
	}()
	var received [4]comch.Received
	aborted := false
	for x.consumer.State() == progress.Running {
		for _, r := range received[:x.consumer.Poll(received[:])] {
			if err := x.consumer.PostReceive(r.Offset, bufferSize, r.UserData); err != nil {
				t.Fatal(err)
			}
		}
		x.consumer.Flush()
		select {
		case <-started:
			if !aborted {
				aborted = true
				to.Abort()
			}
		default:
		}
	}
	<-stopped
	closeAll(t, x.consumer, x.producer)
}

func testWaitingCalls(t *testing.T, from, to comch.Connection) {
	ctx := testContext(t)
	calls := map[string]func() error{
		"receive": func() error { _, err := to.Receive(ctx); return err },
		"event":   func() error { _, err := to.NextConsumerEvent(ctx); return err },
		"send": func() error {
			for {
				if err := to.Send(ctx, []byte("x")); err != nil {
					return err
				}
			}
		},
	}
	type outcome struct {
		what string
		err  error
	}
	outcomes := make(chan outcome, len(calls))
	for what, call := range calls {
		go func() { outcomes <- outcome{what, call()} }()
	}
	from.Abort()
	for range calls {
		got := <-outcomes
		wantCode(t, got.what, got.err, status.NotConnected)
	}
}

func testAfterTheEnd(t *testing.T, from, to comch.Connection) {
	ctx := testContext(t)
	consumer := newConsumer(t, to, comch.ConsumerConfig{Receives: 1, MemorySize: 1})
	nextEvent(t, from, comch.ConsumerEvent{ID: consumer.ID(), Created: true})
	to.Abort()
	awaitDone(t, from)
	for _, side := range []comch.Connection{from, to} {
		_, err := side.NewConsumer(ctx, comch.ConsumerConfig{Receives: 1, MemorySize: 1})
		wantCode(t, "create a consumer", err, status.NotConnected)
		wantCode(t, "send", side.Send(ctx, []byte("x")), status.NotConnected)
		_, err = side.Receive(ctx)
		wantCode(t, "receive", err, status.NotConnected)
		if _, err := side.NewProducer(ctx, consumer.ID()); err == nil {
			t.Error("created a producer")
		}
	}
}
