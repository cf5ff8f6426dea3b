// SPDX-License-Identifier: Apache-2.0

package target

import (
	"context"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// hold is an owner's use of a volume, from the session with which the owner opens it to the end of
// its last one there. Whoever knows the ID of a hold can preempt the owner, as the SCSI command
// PREEMPT AND ABORT does with a reservation key. The ID is new for each hold, so one that was read
// some time ago does not end what began later.
//
// A preempted owner is barred from the volume. It may not have heard of its end, because the
// network or its relay has failed: it would then return as if it had only lost a connection, and
// write what another owner must not find. An owner that means to come back preempts in turn, or is
// a new one.
type hold struct {
	id        controlmsg.HolderID
	owner     [16]byte
	openings  int  // sessions that have the volume open
	preempted bool // its sessions have been ended; they may still have IO in flight
	barred    bool
	successor *hold // which has preempted it; nil if an administrator has
}

// isOver reports whether no session of the hold has the volume open.
func (h *hold) isOver() bool { return h.openings == 0 }

// maxFormerHolds bounds the former holds of a volume that the target remembers. Those of barred
// owners are the last to be forgotten.
const maxFormerHolds = 256

// enterLocked returns the hold of an owner that opens a volume.
func (x *offers) enterLocked(v volume.Volume, owner [16]byte) *hold {
	for _, h := range x.holds[v] {
		if h.owner == owner && !h.isOver() && !h.preempted {
			h.openings++
			return h
		}
	}
	h := &hold{id: controlmsg.NewHolderID(), owner: owner, openings: 1}
	x.holds[v] = append(x.holds[v], h)
	return h
}

// closeLocked ends what a session has said when it opened its volume.
func (x *offers) closeLocked(o *opening) {
	if !o.open {
		return
	}
	o.open = false
	o.hold.openings--
	v := o.offer.Volume
	former := 0
	for _, h := range x.holds[v] {
		if h.isOver() {
			former++
		}
	}
	if former > maxFormerHolds {
		oldest := slices.IndexFunc(x.holds[v],
			func(h *hold) bool { return h.isOver() && !h.barred })
		if oldest < 0 {
			oldest = slices.IndexFunc(x.holds[v], (*hold).isOver)
		}
		x.holds[v] = slices.Delete(x.holds[v], oldest, oldest+1)
	}
}

// forgetHoldsLocked forgets the holds of a volume that the target offers no more.
func (x *offers) forgetHoldsLocked(v volume.Volume) {
	for _, offer := range x.byName {
		if offer.Volume == v {
			return
		}
	}
	for _, o := range x.sessions {
		if o.offer.Volume == v {
			return
		}
	}
	delete(x.holds, v)
}

// namedLocked returns the hold of a volume with an ID, nil if the target does not know it.
func (x *offers) namedLocked(v volume.Volume, id controlmsg.HolderID) *hold {
	for _, h := range x.holds[v] {
		if h.id == id {
			return h
		}
	}
	return nil
}

// isAbsentLocked reports whether nobody has a volume under an ID any more, or ever had.
func (x *offers) isAbsentLocked(v volume.Volume, id controlmsg.HolderID) bool {
	named := x.namedLocked(v, id)
	return named == nil || named.isOver()
}

// foundNobody reports whether the holder that s was to preempt was not there.
func (x *offers) foundNobody(s *session) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.sessions[s].nobody
}

// isBarredLocked reports whether an owner has been preempted from a volume.
func (x *offers) isBarredLocked(v volume.Volume, owner [16]byte) bool {
	return slices.ContainsFunc(x.holds[v],
		func(h *hold) bool { return h.barred && h.owner == owner })
}

// compareLocked returns the hold that an owner, nil for an administrator, preempts by naming it. It
// may be over; then only its owner must not come back. compareLocked returns nil if the target does
// not know the hold, or if it is the owner's own. It fails with status.InUse if somebody else is in
// the place of the hold that was named.
func (x *offers) compareLocked(
	v volume.Volume, id controlmsg.HolderID, owner *[16]byte,
) (*hold, error) {
	isOwn := func(other [16]byte) bool { return owner != nil && other == *owner }
	named := x.namedLocked(v, id)
	if named != nil && isOwn(named.owner) {
		named = nil
	}
	isReplaced := named != nil && named.successor != nil && !named.successor.isOver() &&
		!isOwn(named.successor.owner)
	if named != nil && !named.isOver() && !isReplaced {
		return named, nil
	}
	for s, o := range x.sessions {
		if !o.open || o.hold.preempted || o.offer.Volume != v || isOwn(o.owner) {
			continue
		}
		if o.claim > noClaim ||
			named != nil && (o.hold == named.successor || o.owner == named.owner) {
			return nil, s.isInTheWay("volume %q is not held by holder %v any more, but by %s",
				o.offer.name, id, o.describeHolder(s))
		}
	}
	return named, nil
}

// inTheWayError is the status.InUse error of a session that cannot open its volume because of
// another one.
type inTheWayError struct {
	error
	session *session
}

func (e *inTheWayError) Unwrap() error { return e.error }

func (s *session) isInTheWay(format string, args ...any) error {
	return &inTheWayError{status.Errorf(status.InUse, format, args...), s}
}

// preemptLocked ends a hold on behalf of another one, nil for an administrator: nothing of its
// sessions is submitted to the volume any more. What has been submitted may still be in flight.
func (x *offers) preemptLocked(h, successor *hold, reason error) {
	h.preempted, h.barred, h.successor = true, true, successor
	for s, o := range x.sessions {
		if o.open && o.hold == h {
			s.lease.End()
			s.cancel(reason)
			s.log.Warn("session is preempted", zap.String("volume", o.offer.name),
				zap.Stringer("holder", h.id), zap.Error(reason))
		}
	}
}

// readmitLocked lets an owner open a volume again that it has been preempted from.
func (x *offers) readmitLocked(v volume.Volume, owner [16]byte) {
	for _, h := range x.holds[v] {
		if h.owner == owner {
			h.barred = false
		}
	}
}

// Preempt ends all sessions of a holder of the volume of that name with status.InUse, bars its
// owner from the volume, and waits until nothing of them can change the volume any more. If ctx
// ends before, it fails with status.InProgress: the holder is gone, but requests of it are still in
// flight. It fails with status.InUse if another holder is in the place of the one that was named,
// and does nothing if nobody is. It fails if the target does not own the volume, which another one
// may serve, or cannot find that out.
func (t *Target) Preempt(ctx context.Context, name string, id controlmsg.HolderID) error {
	offer, err := t.offers.offered(name)
	if err != nil {
		return err
	}
	if err := offer.Volume.CheckOwner(ctx); err != nil {
		return fmt.Errorf("preempt at the target that serves the volume: %w", err)
	}
	ended, err := t.offers.preempt(offer, id)
	if err != nil {
		return err
	}
	if err := awaitLeft(ctx, name, ended); err != nil {
		return status.Errorf(status.InProgress, "holder %v has been preempted, and nobody else has "+
			"volume %q exclusively; requests that its storage has not finished are still in flight: %w",
			id, name, err)
	}
	return nil
}

// preempt ends a holder on behalf of an administrator. It returns the sessions to await.
func (x *offers) preempt(offer *offer, id controlmsg.HolderID) ([]*opening, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	named, err := x.compareLocked(offer.Volume, id, nil)
	if err != nil {
		return nil, err
	}
	if named != nil {
		x.preemptLocked(named, nil,
			status.Errorf(status.InUse, "volume %q: preempted by an administrator", offer.name))
	}
	return x.endedLocked(offer.Volume), nil
}
