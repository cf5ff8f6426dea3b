//go:build cgo

package doca_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/pkg/comch"
	comchdoca "github.com/zc-relay/zc-relay/pkg/comch/doca"
	"github.com/zc-relay/zc-relay/pkg/comch/doca/internal/stubborn"
	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// newStubborn returns a provider whose device behaves until the test says otherwise.
func newStubborn(t *testing.T) comch.Provider {
	emulate(t, libdoca.Config{})
	return comchdoca.New(comchdoca.Options{
		Loader: doca.Resolved(stubborn.Over(libdoca.Lookup))})
}

// testContext bounds a test that would hang.
func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// connectedPair is a server and a connection.
type connectedPair struct {
	server           comch.Server
	client, accepted comch.Connection
}

func connectPair(ctx context.Context, t *testing.T, provider comch.Provider,
	config comch.ServerConfig) connectedPair {
	t.Helper()
	var p connectedPair
	p.server = must[comch.Server](t)(provider.Listen(ctx, config))
	p.client = must[comch.Connection](t)(provider.Connect(ctx,
		comch.ClientConfig{Name: config.Name}))
	p.accepted = must[comch.Connection](t)(p.server.Accept(ctx))
	return p
}

// path returns a consumer of the server's side and the client's producer for it.
func (p connectedPair) path(ctx context.Context, t *testing.T) (comch.Consumer,
	comch.LateProducer) {
	t.Helper()
	consumer := must[comch.Consumer](t)(p.accepted.NewConsumer(ctx,
		comch.ConsumerConfig{Receives: 4, MemorySize: 4 * 64}))
	for i := range uint32(4) {
		if err := consumer.PostReceive(i*64, 64, 0); err != nil {
			t.Fatal(err)
		}
	}
	consumer.Flush()
	event := must[comch.ConsumerEvent](t)(p.client.NextConsumerEvent(ctx))
	producer := must[comch.Producer](t)(p.client.NewProducer(ctx, event.ID))
	return consumer, producer.(comch.LateProducer)
}

// A device may take a connection that nobody has accepted, and never let go of it.
func TestARejectedClientThatTheDeviceKeepsDoesNotKeepTheServer(t *testing.T) {
	provider := newStubborn(t)
	ctx := testContext(t)
	stubborn.HoldDisconnects(true)
	defer stubborn.HoldDisconnects(false)
	p := connectPair(ctx, t, provider, comch.ServerConfig{Name: "server",
		Admission: comch.Admission{MaxClients: 1}})
	second := must[comch.Connection](t)(provider.Connect(ctx, comch.ClientConfig{Name: "server"}))
	if err := errors.Join(p.client.Close(), p.accepted.Close()); err != nil {
		t.Error(err)
	}
	if err := p.server.Close(); err != nil {
		t.Error(err)
	}
	// The server ends when it gives the client up, and with it the client.
	select {
	case <-second.Done():
	case <-ctx.Done():
		t.Fatal("the server has not ended")
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
}

func TestASendThatFailsLateEndsItsProducerOnly(t *testing.T) {
	provider := newStubborn(t)
	ctx := testContext(t)
	p := connectPair(ctx, t, provider, comch.ServerConfig{Name: "server"})
	consumer, producer := p.path(ctx, t)
	stubborn.FailSends(1)
	if err := producer.Send([]byte("lost"), nil); err != nil {
		t.Fatal(err)
	}
	producer.Flush()
	for producer.State() == progress.Running && ctx.Err() == nil {
		if n := producer.Poll(); n != 0 {
			t.Errorf("%d sends have succeeded", n)
		}
	}
	if err := producer.Err(); !errors.Is(err, status.IOFailed) {
		t.Errorf("the producer has ended with %v", err)
	}
	if err := producer.Send([]byte("more"), nil); !errors.Is(err, status.NotConnected) {
		t.Errorf("sent on a producer that has failed: %v", err)
	}
	if err := p.client.Send(ctx, []byte("hello")); err != nil {
		t.Error(err)
	}
	if message, err := p.accepted.Receive(ctx); err != nil || string(message) != "hello" {
		t.Errorf("received %q, %v", message, err)
	}
	if err := errors.Join(producer.Close(), consumer.Close(), p.client.Close(),
		p.accepted.Close(), p.server.Close()); err != nil {
		t.Error(err)
	}
}
