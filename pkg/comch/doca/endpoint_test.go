//go:build cgo

package doca

import (
	"errors"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/libdoca"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/doca"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestAMissingDeviceIsToldFromAMissingServer(t *testing.T) {
	if err := libdoca.Configure(libdoca.Config{Directory: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	provider := New(Options{Loader: doca.Resolved(libdoca.Lookup)})
	for device, want := range map[string]bool{"": false, "b1:00.7": true} {
		_, err := provider.Connect(testkit.Context(t),
			comch.ClientConfig{Device: device, Name: "absent"})
		_, isDevice := errors.AsType[*comch.NoDeviceError](err)
		if !errors.Is(err, status.NotFound) || isDevice != want {
			t.Errorf("device %q: %v", device, err)
		}
	}
}

// A thread that stands still in libdoca delays a look at its connections once, and not for long.
func TestALookAtAConnectionGivesUpOnAThreadThatStandsStill(t *testing.T) {
	if err := libdoca.Configure(libdoca.Config{Directory: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	provider := New(Options{Loader: doca.Resolved(libdoca.Lookup)})
	ctx := testkit.Context(t)
	server, err := provider.Listen(ctx, comch.ServerConfig{Name: "server"})
	if err != nil {
		t.Fatal(err)
	}
	client, err := provider.Connect(ctx, comch.ClientConfig{Name: "server"})
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := server.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	e := accepted.(*connection).endpoint
	former := time.Now()
	if comch.HasEnded(accepted, former) {
		t.Error("the connection has ended before its end")
	}
	standing, resume := make(chan struct{}), make(chan struct{})
	e.engine.Do(func() {
		close(standing)
		<-resume
	})
	<-standing
	if err := client.Close(); err != nil {
		t.Error(err)
	}
	if comch.HasEnded(accepted, former) || e.standsStill.Load() {
		t.Error("a look that has been made is made again")
	}
	begin := time.Now()
	for range 1000 {
		if comch.HasEnded(accepted, time.Now()) {
			t.Fatal("nobody can know that the connection has ended")
		}
	}
	if took := time.Since(begin); took < lookTimeout || took > 100*lookTimeout {
		t.Errorf("1000 looks have taken %v, one takes up to %v", took, lookTimeout)
	}
	close(resume)
	testkit.Eventually(t, "the end is found", func() bool { return comch.HasEnded(accepted, time.Now()) })
	if err := errors.Join(accepted.Close(), server.Close()); err != nil {
		t.Error(err)
	}
}

var _ comch.Prober = (*connection)(nil)

// A device may report the sends of a connection after the connection has ended, when another one
// has its handle.
func TestALateSendOfAFormerConnectionIsNoneOfItsSuccessor(t *testing.T) {
	e := &endpoint{connections: make(map[doca.Connection]*connection)}
	var handle doca.Connection
	former := newConnection(e, handle)
	successor := newConnection(e, handle)
	e.connections[handle] = successor
	successor.sends <- struct{}{} // a message is in flight
	sent := doca.ControlEvent{Kind: doca.MessageSent, Connection: handle,
		UserData: former.number, Err: status.IOFailed}
	e.handle(sent)
	if len(successor.sends) != 1 || successor.Err() != nil {
		t.Errorf("%d messages are in flight, and the connection has ended with %v",
			len(successor.sends), successor.Err())
	}
	sent.UserData, sent.Err = successor.number, nil
	e.handle(sent)
	if len(successor.sends) != 0 {
		t.Error("the successor's message counts as in flight although it has been sent")
	}
}
