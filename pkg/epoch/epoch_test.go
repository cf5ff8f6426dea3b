// SPDX-License-Identifier: Apache-2.0

package epoch

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/zc-relay/zc-relay/internal/seedtest"
	"github.com/zc-relay/zc-relay/pkg/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The two ways in which the programs use a registry.
var (
	asRelay  = Config{Restart: true}
	asTarget = Config{Remember: 64}
	client   = Instance{1}
)

// testSession is a session and the context that ends with it.
type testSession struct {
	*Session
	ctx context.Context
}

func newTestSession() testSession {
	ctx, cancel := context.WithCancelCause(context.Background())
	return testSession{NewSession(cancel), ctx}
}

// inBoth runs a test for a registry of a relay and one of a target.
func inBoth(t *testing.T, test func(t *testing.T, r *Registry)) {
	t.Run("relay", func(t *testing.T) { test(t, NewRegistry(asRelay)) })
	t.Run("target", func(t *testing.T) { test(t, NewRegistry(asTarget)) })
}

func supersede(t *testing.T, r *Registry, id Instance, epoch uint64, s testSession) {
	t.Helper()
	if err := r.Supersede(context.Background(), id, epoch, s.Session); err != nil {
		t.Fatalf("epoch %d: %v", epoch, err)
	}
}

func checkSuperseded(t *testing.T, r *Registry, id Instance, epoch uint64, s testSession) {
	t.Helper()
	if err := r.Supersede(context.Background(), id, epoch, s.Session); !errors.Is(err,
		status.NotPermitted) {
		t.Errorf("epoch %d: %v", epoch, err)
	}
}

func TestANewEpochEndsTheOldOneAndWaitsForItsRelease(t *testing.T) {
	inBoth(t, func(t *testing.T, r *Registry) {
		old, fresh := newTestSession(), newTestSession()
		supersede(t, r, client, 1, old)
		begun := make(chan error)
		go func() { begun <- r.Supersede(context.Background(), client, 2, fresh.Session) }()
		<-old.ctx.Done()
		select {
		case err := <-begun:
			t.Fatalf("the new epoch began before the old one was released: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
		r.Release(old.Session)
		if err := <-begun; err != nil {
			t.Errorf("the new epoch: %v", err)
		}
		if fresh.ctx.Err() != nil {
			t.Error("the new session was ended")
		}
	})
}

func TestAnEpochWaitsForTheReleaseOfAllSessionsBefore(t *testing.T) {
	inBoth(t, func(t *testing.T, r *Registry) {
		first, second, third := newTestSession(), newTestSession(), newTestSession()
		supersede(t, r, client, 1, first)
		begun := make(chan error, 2)
		go func() { begun <- r.Supersede(second.ctx, client, 2, second.Session) }()
		<-first.ctx.Done()
		go func() { begun <- r.Supersede(third.ctx, client, 3, third.Session) }()
		if err := <-begun; !errors.Is(err, status.TimeOut) {
			t.Errorf("the second epoch, ended by the third: %v", err)
		}
		r.Release(second.Session)
		select {
		case err := <-begun:
			t.Fatalf("the third epoch began before the first was released: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
		r.Release(first.Session)
		if err := <-begun; err != nil || third.ctx.Err() != nil {
			t.Errorf("the third epoch: %v", err)
		}
	})
}

func TestAnEpochThatTimedOutLeavesTheFormerSessionToTheNext(t *testing.T) {
	inBoth(t, func(t *testing.T, r *Registry) {
		first, second := newTestSession(), newTestSession()
		supersede(t, r, client, 1, first)
		short, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		if err := r.Supersede(short, client, 2, second.Session); !errors.Is(err,
			context.DeadlineExceeded) {
			t.Fatalf("the second epoch: %v", err)
		}
		r.Release(second.Session)
		begun := make(chan error)
		go func() {
			begun <- r.Supersede(context.Background(), client, 3,
				newTestSession().Session)
		}()
		select {
		case <-begun:
			t.Fatal("the third epoch began before the first was released")
		case <-time.After(20 * time.Millisecond):
		}
		r.Release(first.Session)
		if err := <-begun; err != nil {
			t.Errorf("the third epoch: %v", err)
		}
	})
}

func TestASupersededEpochEndsNothing(t *testing.T) {
	inBoth(t, func(t *testing.T, r *Registry) {
		current := newTestSession()
		supersede(t, r, client, 5, current)
		for _, n := range []uint64{4, 5} {
			checkSuperseded(t, r, client, n, newTestSession())
		}
		if current.ctx.Err() != nil {
			t.Error("a rejected epoch ended the session")
		}
	})
}

func TestOnlyARelaysSessionMayStartAgainInItsEpoch(t *testing.T) {
	relay, target, s := NewRegistry(asRelay), NewRegistry(asTarget), newTestSession()
	supersede(t, relay, client, 5, s)
	supersede(t, relay, client, 5, s)
	checkSuperseded(t, relay, client, 5, newTestSession())
	supersede(t, target, client, 5, s)
	checkSuperseded(t, target, client, 5, s)
	if s.ctx.Err() != nil {
		t.Error("the session was ended")
	}
}

func TestASessionThatStartsAgainStillWaitsForTheFormerOne(t *testing.T) {
	r, former, s := NewRegistry(asRelay), newTestSession(), newTestSession()
	supersede(t, r, client, 1, former)
	short, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	for range 2 {
		if err := r.Supersede(short, client, 2, s.Session); !errors.Is(err, status.TimeOut) {
			t.Errorf("before the former session is released: %v", err)
		}
	}
	r.Release(former.Session)
	supersede(t, r, client, 2, s)
}

func TestDifferentClientsDoNotWaitForEachOther(t *testing.T) {
	inBoth(t, func(t *testing.T, r *Registry) {
		for i := range byte(3) {
			supersede(t, r, Instance{i}, 1, newTestSession())
		}
	})
}

func TestARelayForgetsAnInstanceWithItsLastSession(t *testing.T) {
	r := NewRegistry(asRelay)
	first, second := newTestSession(), newTestSession()
	supersede(t, r, client, 5, first)
	r.Release(first.Session)
	if len(r.instances) > 0 {
		t.Errorf("%d instances are remembered", len(r.instances))
	}
	supersede(t, r, client, 1, second)
}

func TestATargetRemembersEpochsWithoutSessions(t *testing.T) {
	r, s := NewRegistry(asTarget), newTestSession()
	supersede(t, r, client, 5, s)
	r.Release(s.Session)
	for _, n := range []uint64{4, 5} {
		checkSuperseded(t, r, client, n, newTestSession())
	}
	if s.ctx.Err() != nil {
		t.Error("a rejected epoch ended another session")
	}
}

func TestRememberedInstancesAreBoundedAndThoseWithSessionsAreKept(t *testing.T) {
	r := NewRegistry(asTarget)
	kept, recent := Instance{0xFF}, Instance{0xFE}
	supersede(t, r, kept, 9, newTestSession())
	for i := range uint64(asTarget.Remember + 100) {
		var id Instance
		binary.BigEndian.PutUint64(id[8:], i)
		s := newTestSession()
		supersede(t, r, id, 1, s)
		r.Release(s.Session)
		again := newTestSession()
		supersede(t, r, recent, i, again)
		r.Release(again.Session)
	}
	if len(r.instances) > asTarget.Remember {
		t.Errorf("%d instances are remembered", len(r.instances))
	}
	checkSuperseded(t, r, kept, 9, newTestSession())
	checkSuperseded(t, r, recent, 1, newTestSession())
}

func TestAnInstanceWithASessionIsNeverForgotten(t *testing.T) {
	r := NewRegistry(Config{Remember: 1})
	supersede(t, r, Instance{}, 5, newTestSession())
	supersede(t, r, client, 1, newTestSession())
	checkSuperseded(t, r, Instance{}, 5, newTestSession())
}

func TestOnlyAnEpochThatWasNotServedMayBeUsedAgain(t *testing.T) {
	r := NewRegistry(asTarget)
	for _, n := range []uint64{0, 1, 5} {
		failed, served, late := newTestSession(), newTestSession(), newTestSession()
		supersede(t, r, client, n, failed)
		r.Undo(client, n, failed.Session)
		supersede(t, r, client, n, served)
		r.Release(served.Session)
		for range 2 {
			checkSuperseded(t, r, client, n, late)
			r.Undo(client, n, late.Session)
		}
		undone := newTestSession()
		supersede(t, r, client, n+1, undone)
		r.Undo(client, n+1, undone.Session)
		checkSuperseded(t, r, client, n, late)
	}
}

func TestAnEpochIsUndoneOnlyForTheInstanceOfItsSession(t *testing.T) {
	inBoth(t, func(t *testing.T, r *Registry) {
		s := newTestSession()
		supersede(t, r, numbered(1), 5, s)
		supersede(t, r, numbered(2), 5, s)
		r.Undo(numbered(1), 5, s.Session)
		checkSuperseded(t, r, numbered(2), 4, newTestSession())
		supersede(t, r, numbered(1), 5, newTestSession())
	})
}

// numbered returns a different instance for each number.
func numbered(n int) (id Instance) {
	binary.BigEndian.PutUint64(id[8:], uint64(n))
	return id
}

func TestASessionThatNamesManyInstancesBelongsToTheLast(t *testing.T) {
	inBoth(t, func(t *testing.T, r *Registry) {
		s := newTestSession()
		for i := range 1000 {
			supersede(t, r, numbered(i), 5, s)
			if len(r.instances) > 1 {
				t.Fatalf("%d instances are remembered for one session", len(r.instances))
			}
		}
		supersede(t, r, numbered(0), 5, newTestSession())
		if s.ctx.Err() != nil {
			t.Error("the session was ended for an instance that it does not belong to any more")
		}
		r.Release(s.Session)
	})
}

func TestInstancesThatAreUndoneDisplaceNoEpoch(t *testing.T) {
	r := NewRegistry(asTarget)
	for i := range asTarget.Remember - 1 {
		s := newTestSession()
		supersede(t, r, numbered(i), 5, s)
		r.Release(s.Session)
	}
	for i := range 10 * asTarget.Remember {
		s := newTestSession()
		supersede(t, r, numbered(1000+i), 5, s)
		r.Undo(numbered(1000+i), 5, s.Session)
	}
	for i := range asTarget.Remember - 1 {
		checkSuperseded(t, r, numbered(i), 5, newTestSession())
	}
}

// An epoch that was served never begins again; one that was undone does, and every higher one.
func TestARegistryServesAscendingEpochs(t *testing.T) {
	seedtest.Check(t, func(t *rapid.T) {
		r := NewRegistry(asTarget)
		next := uint64(0) // the lowest epoch that must be accepted
		for range rapid.IntRange(1, 30).Draw(t, "sessions") {
			n := rapid.Uint64Range(0, 6).Draw(t, "epoch")
			if rapid.Bool().Draw(t, "highest") {
				n = math.MaxUint64 - n
			}
			s := newTestSession()
			err := r.Supersede(context.Background(), client, n, s.Session)
			switch {
			case n >= next && err != nil:
				t.Fatalf("epoch %d, although %d is the next: %v", n, next, err)
			case err != nil:
				r.Undo(client, n, s.Session)
			case rapid.Bool().Draw(t, "undone"):
				r.Undo(client, n, s.Session)
				r.Undo(client, n, s.Session)
				if next > 0 { // otherwise the registry has nothing to remember
					next = n
				}
			default:
				r.Release(s.Session)
				if n < next {
					t.Fatalf("epoch %d began, although %d is the next", n, next)
				}
				if next = n + 1; next == 0 {
					return
				}
			}
		}
	})
}
