// SPDX-License-Identifier: Apache-2.0

package hook_test

import (
	"bytes"
	"context"
	"errors"
	"math/bits"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/comch/hook"
	"github.com/zc-relay/zc-relay/pkg/fault"
	"github.com/zc-relay/zc-relay/pkg/fault/faulttest"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// link is a connection with a producer at the client and a consumer at the server.
type link struct {
	client, server comch.Connection
	producer       comch.Producer
	consumer       comch.Consumer
}

const (
	linkReceives = 8
	linkBuffer   = 64
)

// connect connects both ends over a provider with hooks.
func connect(t *testing.T, injector *fault.Injector) *link {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	t.Cleanup(cancel)
	provider := wrap(t, injector)
	server, err := provider.Listen(ctx, comch.ServerConfig{Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	var l link
	if l.client, err = provider.Connect(ctx, comch.ClientConfig{Name: "test"}); err != nil {
		t.Fatal(err)
	}
	if l.server, err = server.Accept(ctx); err != nil {
		t.Fatal(err)
	}
	l.consumer, err = l.server.NewConsumer(ctx, comch.ConsumerConfig{Receives: linkReceives,
		MemorySize: linkReceives * linkBuffer})
	if err != nil {
		t.Fatal(err)
	}
	if l.producer, err = l.client.NewProducer(ctx, l.consumer.ID()); err != nil {
		t.Fatal(err)
	}
	for i := range uint32(linkReceives) {
		err := l.consumer.PostReceive(i*linkBuffer, linkBuffer, uint64(i))
		if err != nil {
			t.Fatal(err)
		}
	}
	l.consumer.Flush()
	t.Cleanup(func() {
		if err := errors.Join(l.producer.Close(), l.consumer.Close()); err != nil {
			t.Error(err)
		}
		l.client.Abort()
		l.server.Abort()
		_ = server.Close()
	})
	return &l
}

// receive polls until a message arrives.
func (l *link) receive(t *testing.T) []byte {
	t.Helper()
	var received [1]comch.Received
	deadline := time.Now().Add(time.Minute)
	for ; l.consumer.Poll(received[:]) == 0; progress.Yield() {
		if time.Now().After(deadline) {
			t.Fatal("no message arrives")
		}
	}
	r := received[0]
	return bytes.Clone(l.consumer.Memory()[r.Offset : r.Offset+r.Length])
}

func TestAFrozenMessageWaitsAsIfTheConsumerWereFull(t *testing.T) {
	injector, _ := faulttest.New(t, "comch:producer.send:nth=2:freeze")
	l := connect(t, injector)
	for i, want := range []error{nil, status.Again, status.Again} {
		if err := l.producer.Send([]byte{byte(i)}, nil); !errors.Is(err, want) {
			t.Errorf("Send %d returned %v, want %v", i, err, want)
		}
	}
	if !l.producer.Arm() {
		t.Fatal("a producer with a frozen message cannot sleep")
	}
	injector.Release()
	l.producer.Disarm()
	if l.producer.Arm() {
		t.Error("after the release, the producer still sleeps")
	}
	if err := l.producer.Send([]byte{1}, nil); err != nil {
		t.Error(err)
	}
	l.producer.Flush()
	for want := range byte(2) {
		if got := l.receive(t); len(got) != 1 || got[0] != want {
			t.Errorf("received %v, want %d", got, want)
		}
	}
}

func TestMessagesAreDuplicatedAndCorrupted(t *testing.T) {
	injector, _ := faulttest.New(t, "comch:producer.send:nth=1:duplicate",
		"comch:producer.send:nth=2:corrupt", "comch:consumer.poll:nth=4:corrupt")
	l := connect(t, injector)
	sent := []byte{0, 0, 0}
	for range 3 {
		if err := l.producer.Send(sent, nil); err != nil {
			t.Fatal(err)
		}
	}
	l.producer.Flush()
	for i, want := range []int{0, 0, 1, 1} {
		ones := 0
		for _, b := range l.receive(t) {
			ones += bits.OnesCount8(b)
		}
		if ones != want {
			t.Errorf("message %d has %d inverted bits, want %d", i, ones, want)
		}
	}
	if !bytes.Equal(sent, make([]byte, 3)) {
		t.Error("the sender's message was changed")
	}
}

func TestADroppedMessageEndsTheConnection(t *testing.T) {
	for _, rule := range []string{"comch:producer.send:drop", "comch:send:drop",
		"comch:receive:drop"} {
		t.Run(rule, func(t *testing.T) {
			injector, _ := faulttest.New(t, rule)
			l := connect(t, injector)
			var err error
			switch injector.Rules()[0].Rule.Operation {
			case "producer.send":
				err = l.producer.Send([]byte("message"), nil)
			case "send":
				err = l.client.Send(t.Context(), []byte("message"))
			case "receive":
				if err := l.server.Send(t.Context(), []byte("message")); err != nil {
					t.Fatal(err)
				}
				_, err = l.client.Receive(t.Context())
			}
			if !errors.Is(err, status.NotConnected) || !errors.Is(err, fault.ErrInjected) {
				t.Errorf("the operation returned %v", err)
			}
			<-l.client.Done()
			<-l.server.Done()
		})
	}
}

func TestAReceiveThatFailsLosesNoMessage(t *testing.T) {
	injector, _ := faulttest.New(t, "comch:receive:nth=1:error=IO_FAILED",
		"comch:receive:nth=2:freeze")
	l := connect(t, injector)
	for _, message := range []string{"one", "two", "three"} {
		if err := l.client.Send(t.Context(), []byte(message)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.server.Receive(t.Context()); !errors.Is(err, status.IOFailed) {
		t.Errorf("the first Receive returned %v", err)
	}
	if got, err := l.server.Receive(t.Context()); string(got) != "one" {
		t.Errorf("received %q, %v", got, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := l.server.Receive(ctx); !errors.Is(err, status.TimeOut) {
		t.Errorf("a frozen Receive returned %v", err)
	}
	for _, want := range []string{"two", "three"} {
		if got, err := l.server.Receive(t.Context()); string(got) != want {
			t.Errorf("received %q, %v, want %q", got, err, want)
		}
	}
}

// bare is a provider without optional interfaces.
type bare struct{ comch.Provider }

type onlyLister struct {
	comch.Provider
	comch.ServiceLister
}

func TestOptionalInterfacesStay(t *testing.T) {
	inner := emulated.New(emulated.Options{Directory: t.TempDir()})
	injector, _ := faulttest.New(t, "comch:any:trace")
	for name, c := range map[string]struct {
		provider     comch.Provider
		msgQ, lister bool
	}{
		"both":   {inner, true, true},
		"none":   {bare{inner}, false, false},
		"lister": {onlyLister{inner, any(inner).(comch.ServiceLister)}, false, true},
		"queues": {struct{ comch.MsgQProvider }{any(inner).(comch.MsgQProvider)}, true, false},
	} {
		p := hook.Wrap(c.provider, hook.Config{Injector: injector})
		_, err := comch.AsMsgQProvider(p)
		_, lister := p.(comch.ServiceLister)
		if (err == nil) != c.msgQ || lister != c.lister || p.Name() != inner.Name() {
			t.Errorf("%s: %s has message queues: %v, lists services: %v", name, p.Name(), err,
				lister)
		}
		if hook.Wrap(c.provider, hook.Config{}) != c.provider {
			t.Errorf("%s: there is a wrapper that has nothing to do", name)
		}
	}
}

func TestMessagesThatNoRuleMatchesDoNotAllocate(t *testing.T) {
	injector, _ := faulttest.New(t, "comch:any:while=off:freeze",
		"comch:any:after=1000000000:corrupt")
	l := connect(t, injector)
	message, received := make([]byte, 16), make([]comch.Received, 1)
	if n := testing.AllocsPerRun(100, func() {
		if err := l.producer.Send(message, nil); err != nil {
			t.Fatal(err)
		}
		l.producer.Flush()
		for l.consumer.Poll(received) == 0 {
			progress.Yield()
		}
		r := received[0]
		if err := l.consumer.PostReceive(r.Offset, linkBuffer, r.UserData); err != nil {
			t.Fatal(err)
		}
		l.consumer.Flush()
	}); n != 0 {
		t.Errorf("%v allocations per message", n)
	}
}
