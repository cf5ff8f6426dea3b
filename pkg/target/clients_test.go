package target

import (
	"context"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
)

func testSession() *session {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &session{ctx: ctx, cancel: cancel}
}

func TestANewEpochEndsTheOldOneAndWaitsForItsIO(t *testing.T) {
	r := newClientRegistry()
	id := [16]byte{1}
	old, fresh := testSession(), testSession()
	if err := r.enter(context.Background(), id, 1, old); err != nil {
		t.Fatal(err)
	}
	entered := make(chan error)
	go func() { entered <- r.enter(context.Background(), id, 2, fresh) }()
	<-old.ctx.Done()
	select {
	case err := <-entered:
		t.Fatalf("the new epoch began while the old one had IO: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	r.leave(id, old)
	if err := <-entered; err != nil {
		t.Errorf("the new epoch: %v", err)
	}
	if fresh.ctx.Err() != nil {
		t.Error("the new session was ended")
	}
}

func TestOldAndRepeatedEpochsAreRefused(t *testing.T) {
	r := newClientRegistry()
	id := [16]byte{1}
	s := testSession()
	if err := r.enter(context.Background(), id, 5, s); err != nil {
		t.Fatal(err)
	}
	r.leave(id, s)
	for _, epoch := range []uint64{4, 5} {
		if err := r.enter(context.Background(), id, epoch, testSession()); !errors.Is(err, status.NotPermitted) {
			t.Errorf("epoch %d after 5: %v", epoch, err)
		}
	}
	if s.ctx.Err() != nil {
		t.Error("a refused epoch ended another session")
	}
}

func TestAThirdEpochWaitsForAllBefore(t *testing.T) {
	r := newClientRegistry()
	id := [16]byte{1}
	first, second := testSession(), testSession()
	if err := r.enter(context.Background(), id, 1, first); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if err := r.enter(short, id, 2, second); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("the second epoch: %v", err)
	}
	r.leave(id, second)
	entered := make(chan error)
	go func() { entered <- r.enter(context.Background(), id, 3, testSession()) }()
	select {
	case <-entered:
		t.Fatal("the third epoch began while the first had IO")
	case <-time.After(20 * time.Millisecond):
	}
	r.leave(id, first)
	if err := <-entered; err != nil {
		t.Errorf("the third epoch: %v", err)
	}
}

func TestDifferentClientsDoNotWaitForEachOther(t *testing.T) {
	r := newClientRegistry()
	for i := range byte(3) {
		if err := r.enter(context.Background(), [16]byte{i}, 1, testSession()); err != nil {
			t.Errorf("client %d: %v", i, err)
		}
	}
}

func TestRememberedClientsAreBoundedAndThoseWithSessionsAreKept(t *testing.T) {
	r := newClientRegistry()
	kept := testSession()
	if err := r.enter(context.Background(), [16]byte{0xFF}, 9, kept); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(maxClientInstances + 100) {
		var id [16]byte
		binary.BigEndian.PutUint64(id[8:], i)
		s := testSession()
		if err := r.enter(context.Background(), id, 1, s); err != nil {
			t.Fatal(err)
		}
		r.leave(id, s)
	}
	if len(r.instances) > maxClientInstances {
		t.Errorf("%d clients are remembered", len(r.instances))
	}
	if err := r.enter(context.Background(), [16]byte{0xFF}, 9, testSession()); !errors.Is(err, status.NotPermitted) {
		t.Errorf("a client with a session was forgotten: %v", err)
	}
}

func TestOnlyAnEpochThatWasNotServedMayBeTriedAgain(t *testing.T) {
	r := newClientRegistry()
	id := [16]byte{1}
	for _, epoch := range []uint64{0, 1, 5} {
		failed, served, late := testSession(), testSession(), testSession()
		if err := r.enter(context.Background(), id, epoch, failed); err != nil {
			t.Fatalf("epoch %d: %v", epoch, err)
		}
		r.withdraw(id, epoch, failed)
		if err := r.enter(context.Background(), id, epoch, served); err != nil {
			t.Fatalf("epoch %d after a failure: %v", epoch, err)
		}
		r.leave(id, served)
		for range 2 {
			if err := r.enter(context.Background(), id, epoch, late); !errors.Is(err, status.NotPermitted) {
				t.Errorf("epoch %d after it was served: %v", epoch, err)
			}
			r.withdraw(id, epoch, late)
		}
	}
}
