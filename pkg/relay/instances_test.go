package relay

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testSession() *session {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &session{ctx: ctx, cancel: cancel, released: make(chan struct{})}
}

func epoch(n uint64) *controlmsg.ConfigureDataPath {
	return &controlmsg.ConfigureDataPath{ClientInstance: [16]byte{1}, Epoch: n}
}

func TestANewEpochWaitsForTheReleaseOfAllSessionsBefore(t *testing.T) {
	r := newInstanceRegistry()
	first, second, third := testSession(), testSession(), testSession()
	if err := r.enter(context.Background(), epoch(1), first); err != nil {
		t.Fatal(err)
	}
	entered := make(chan error, 2)
	go func() { entered <- r.enter(second.ctx, epoch(2), second) }()
	<-first.ctx.Done()
	go func() { entered <- r.enter(third.ctx, epoch(3), third) }()
	if err := <-entered; !errors.Is(err, status.TimeOut) {
		t.Errorf("the second epoch, ended by the third: %v", err)
	}
	r.leave(second)
	select {
	case err := <-entered:
		t.Fatalf("the third epoch began before the first was released: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	r.leave(first)
	if err := <-entered; err != nil || third.ctx.Err() != nil {
		t.Errorf("the third epoch: %v", err)
	}
	r.leave(third)
	if len(r.instances) > 0 {
		t.Errorf("%d instances are remembered", len(r.instances))
	}
}

func TestAnOlderEpochEndsNothing(t *testing.T) {
	r := newInstanceRegistry()
	current := testSession()
	if err := r.enter(context.Background(), epoch(5), current); err != nil {
		t.Fatal(err)
	}
	for _, n := range []uint64{4, 5} {
		if err := r.enter(context.Background(), epoch(n), testSession()); !errors.Is(err, status.NotPermitted) {
			t.Errorf("epoch %d after 5: %v", n, err)
		}
	}
	if err := r.enter(context.Background(), epoch(5), current); err != nil {
		t.Errorf("the same session configures again: %v", err)
	}
	if current.ctx.Err() != nil {
		t.Error("a refused epoch ended the session")
	}
}
