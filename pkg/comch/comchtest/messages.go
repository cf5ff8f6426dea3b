package comchtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// exchange sends a control message and checks that it arrives.
func exchange(t *testing.T, from, to comch.Connection, text string) {
	t.Helper()
	ctx := testContext(t)
	if err := from.Send(ctx, []byte(text)); err != nil {
		t.Fatal(err)
	}
	message, err := to.Receive(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if string(message) != text {
		t.Fatalf("received %q, want %q", message, text)
	}
}

func (s *suite) testMessages(t *testing.T) {
	t.Run("ArriveWholeAndInOrder", func(t *testing.T) { s.bothWays(t, testOrder) })
	t.Run("MayHaveAnySizeUpToTheLimit", func(t *testing.T) { s.bothWays(t, testSizes) })
	t.Run("BelongToTheReceiver", func(t *testing.T) { s.bothWays(t, testOwnership) })
	t.Run("WaitWhileTheQueueIsFull", s.testFullQueue)
	t.Run("ReceiveEndsWithItsContext", func(t *testing.T) {
		ctx, cancel := context.WithCancel(testContext(t))
		cancel()
		if _, err := s.connect(t).client.Receive(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want %v", err, context.Canceled)
		}
	})
	t.Run("OfSeveralClientsDoNotMix", s.testSeveralClients)
	t.Run("SentBeforeTheEndAreReceived", func(t *testing.T) { s.bothWays(t, testLastWords) })
}

// bothWays runs a test in either direction of a connection.
func (s *suite) bothWays(t *testing.T, run func(t *testing.T, from, to comch.Connection)) {
	t.Run("ClientToServer", func(t *testing.T) {
		p := s.connect(t)
		run(t, p.client, p.server)
	})
	t.Run("ServerToClient", func(t *testing.T) {
		p := s.connect(t)
		run(t, p.server, p.client)
	})
}

func testOrder(t *testing.T, from, to comch.Connection) {
	ctx := testContext(t)
	const count = 1000
	failed := make(chan error, 1)
	go func() {
		for i := range count {
			if err := from.Send(ctx, fmt.Appendf(nil, "message %d", i)); err != nil {
				failed <- err
				return
			}
		}
		failed <- nil
	}()
	for i := range count {
		message, err := to.Receive(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("message %d", i); string(message) != want {
			t.Fatalf("received %q, want %q", message, want)
		}
	}
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
}

func testSizes(t *testing.T, from, to comch.Connection) {
	limit := from.MaxMessageSize()
	for _, size := range []int{0, 1, limit - 1, limit} {
		exchange(t, from, to, string(bytes.Repeat([]byte{0xa5}, size)))
	}
	err := from.Send(testContext(t), make([]byte, limit+1))
	wantCode(t, "send more than the limit", err, status.TooBig)
	exchange(t, from, to, "after the refusal")
}

func testOwnership(t *testing.T, from, to comch.Connection) {
	ctx := testContext(t)
	message := []byte("first")
	for _, text := range []string{"first", "other"} {
		copy(message, text)
		if err := from.Send(ctx, message); err != nil {
			t.Fatal(err)
		}
		copy(message, "xxxxx")
	}
	first, err := to.Receive(ctx)
	if err != nil {
		t.Fatal(err)
	}
	second, err := to.Receive(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if string(first) != "first" || string(second) != "other" {
		t.Errorf("received %q and %q", first, second)
	}
}

func (s *suite) testFullQueue(t *testing.T) {
	config := s.serverConfig()
	config.ReceiveQueue = 3
	p := s.connectWith(t, config)
	ctx := testContext(t)
	for range config.ReceiveQueue {
		if err := p.client.Send(ctx, []byte("queued")); err != nil {
			t.Fatal(err)
		}
	}
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	if err := p.client.Send(canceled, []byte("too many")); !errors.Is(err, context.Canceled) {
		t.Fatalf("send to a full queue: got %v, want %v", err, context.Canceled)
	}
	sent := make(chan error, 1)
	go func() { sent <- p.client.Send(ctx, []byte("last")) }()
	for _, want := range []string{"queued", "queued", "queued", "last"} {
		message, err := p.server.Receive(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if string(message) != want {
			t.Fatalf("received %q, want %q", message, want)
		}
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
}

func (s *suite) testSeveralClients(t *testing.T) {
	config := s.serverConfig()
	server := s.listen(t, config)
	var pairs []pair
	for range 4 {
		pairs = append(pairs, s.join(t, server, config))
	}
	for i, p := range pairs {
		exchange(t, p.client, p.server, fmt.Sprintf("from client %d", i))
		exchange(t, p.server, p.client, fmt.Sprintf("to client %d", i))
	}
}

func testLastWords(t *testing.T, from, to comch.Connection) {
	ctx := testContext(t)
	for i := range 5 {
		if err := from.Send(ctx, fmt.Appendf(nil, "word %d", i)); err != nil {
			t.Fatal(err)
		}
	}
	closeAll(t, from)
	awaitDone(t, to)
	for i := range 5 {
		message, err := to.Receive(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("word %d", i); string(message) != want {
			t.Errorf("received %q, want %q", message, want)
		}
	}
	_, err := to.Receive(ctx)
	wantCode(t, "receive after the last message", err, status.NotConnected)
}
