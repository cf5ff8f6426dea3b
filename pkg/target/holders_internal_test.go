// SPDX-License-Identifier: Apache-2.0

package target

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/lease"
	"github.com/zc-relay/zc-relay/pkg/mutualtls/mutualtlstest"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume/volumetest"
)

// holders is a volume, and the sessions that use it.
type holders struct {
	t *testing.T
	*offers
}

func newHolders(t *testing.T) *holders {
	t.Helper()
	x, err := newOffers(map[string]Offer{"disk": {Volume: volumetest.OpenMemory(t, "1MiB")}})
	if err != nil {
		t.Fatal(err)
	}
	return &holders{t, x}
}

// join returns a session that has chosen the volume.
func (h *holders) join() *session {
	h.t.Helper()
	ctx, cancel := context.WithCancelCause(h.t.Context())
	s := &session{pendingConnection: &pendingConnection{ctx: ctx, cancel: cancel},
		log: zap.NewNop()}
	var err error
	if s.offer, _, err = h.choose(s, "disk"); err != nil {
		h.t.Fatal(err)
	}
	return s
}

// enter opens the volume exclusively for an owner.
func (h *holders) enter(
	s *session, owner byte, preempt controlmsg.HolderID,
) (controlmsg.HolderID, error) {
	return h.open(s, &controlmsg.ConfigureDataPath{Owner: [16]byte{owner}, Preempt: preempt},
		ExclusiveAccess, soleUser)
}

func (h *holders) mustEnter(
	s *session, owner byte, preempt controlmsg.HolderID,
) controlmsg.HolderID {
	h.t.Helper()
	id, err := h.enter(s, owner, preempt)
	if err != nil {
		h.t.Fatal(err)
	}
	return id
}

// A change that is about to be submitted would otherwise slip in while the session ends.
func TestNothingOfAPreemptedSessionIsSubmittedAnyMore(t *testing.T) {
	h := newHolders(t)
	lessor := lease.NewLessor(time.Minute, nil)
	tenancy := lessor.Connect(func() {})
	question := tenancy.Question().Number
	err := tenancy.Hear(&lease.Answer{Instance: lease.Instance{1}, Question: question})
	if err != nil {
		t.Fatal(err)
	}
	s := h.join()
	if s.lease, err = tenancy.Open(1, s.cancel, func() {}); err != nil {
		t.Fatal(err)
	}
	id := h.mustEnter(s, 1, 0)
	if got := s.lease.Check(s.lease.Now()); got != lease.Valid {
		t.Fatalf("the verdict on the holder's changes is %v", got)
	}
	h.mustEnter(h.join(), 2, id)
	if got := s.lease.Check(s.lease.Now()); got != lease.Ended {
		t.Errorf("the verdict on the changes of a preempted holder is %v, want ended", got)
	}
	if cause := context.Cause(s.ctx); !s.hasEnded() || !errors.Is(cause, status.InUse) {
		t.Errorf("the preempted session has ended: %v, because of %v", s.hasEnded(), cause)
	}
}

// A session that has waited for former ones before the holder was preempted has not waited for it.
func TestNobodyComesBetweenAPreemptedHolderAndTheEndOfItsIO(t *testing.T) {
	h := newHolders(t)
	former := h.join()
	id := h.mustEnter(former, 1, 0)
	other := h.join()
	if err := h.awaitEnded(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if ended, err := h.preempt(h.byName["disk"], id); err != nil || len(ended) != 1 {
		t.Fatalf("%d sessions have ended: %v", len(ended), err)
	}
	if _, err := h.enter(other, 2, 0); !errors.Is(err, status.InUse) {
		t.Errorf("a session begins while the IO of a preempted holder is in flight: %v", err)
	}
	h.leave(former)
	h.mustEnter(other, 2, 0)
}

func TestPreemptNeedsItsRightWhenTheVolumeIsOpened(t *testing.T) {
	x, s := chosen(t, ExclusiveAccess)
	m := &controlmsg.ConfigureDataPath{Preempt: 1}
	if _, err := x.open(s, m, ReadAccess, noClaim); !errors.Is(err, status.NotPermitted) {
		t.Errorf("an owner's client preempts: %v", err)
	}
	if _, err := x.setRights("disk", []Right{{Relay: mutualtlstest.Name("a"), Access: PreemptAccess}}); err != nil {
		t.Fatal(err)
	}
	if _, err := x.open(s, m, ReadAccess, noClaim); err != nil {
		t.Errorf("a preemptor's client preempts: %v", err)
	}
}

// What a target remembers of former holders is bounded. It forgets those last that must not come
// back.
func TestFormerHoldersAreForgottenExceptThoseThatAreBarred(t *testing.T) {
	h := newHolders(t)
	loser, winner := h.join(), h.join()
	h.mustEnter(winner, 2, h.mustEnter(loser, 1, 0))
	h.leave(loser)
	h.leave(winner)
	for i := range 3 * maxFormerHolds {
		s := h.join()
		h.mustEnter(s, byte(3+i%250), 0)
		h.leave(s)
	}
	if n := len(h.holds[h.byName["disk"].Volume]); n != maxFormerHolds {
		t.Errorf("the target remembers %d holders, want %d", n, maxFormerHolds)
	}
	if _, err := h.enter(h.join(), 1, 0); !errors.Is(err, status.NotPermitted) {
		t.Errorf("the preempted owner comes back: %v", err)
	}
	if _, _, err := h.remove("disk"); err != nil {
		t.Fatal(err)
	}
	for s := range h.sessions {
		h.leave(s)
	}
	if len(h.holds) != 0 {
		t.Errorf("the target remembers holders of a volume that it does not offer: %v", h.holds)
	}
}
