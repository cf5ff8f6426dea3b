// SPDX-License-Identifier: Apache-2.0

package target

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/printable"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/lease"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// Offer is a volume as relays can use it. A volume may be offered several times, under different
// names; these offers share what is said about exclusive sessions below.
type Offer struct {
	Volume volume.Volume
	// ReadOnly makes all sessions read-only.
	ReadOnly bool
	// Exclusive lets one owner at a time have sessions that can write. Others may read meanwhile.
	Exclusive bool
	// Rights lists the relays that may use the volume. If it is empty, all relays may do
	// everything.
	Rights []Right
}

// Right is what a relay may do with a volume.
type Right struct {
	// Relay is a name in the relay's certificate.
	Relay  mutualtls.Name
	Access Access
}

// Access is what a relay's clients may do. Each value includes those before it.
type Access uint8

// The values of Access.
const (
	NoAccess Access = iota
	ReadAccess
	WriteAccess
	// ExclusiveAccess lets clients open the volume exclusively.
	ExclusiveAccess
	// PreemptAccess lets clients end the sessions of others, whom they name.
	PreemptAccess
)

// String returns the highest right that is included.
func (a Access) String() string {
	switch a {
	case NoAccess:
		return "none"
	case ReadAccess:
		return "read"
	case WriteAccess:
		return "write"
	case ExclusiveAccess:
		return "own"
	case PreemptAccess:
		return "preempt"
	}
	return "unknown"
}

// access returns what a relay whose certificate has the given names may do.
func (o *Offer) access(relay []mutualtls.Name) Access { return AccessOf(o.Rights, relay) }

// AccessOf returns what rights let a relay do whose certificate has the given names.
func AccessOf(rights []Right, relay []mutualtls.Name) Access {
	if len(rights) == 0 {
		return PreemptAccess
	}
	granted := NoAccess
	for _, right := range rights {
		if slices.Contains(relay, right.Relay) {
			granted = max(granted, right.Access)
		}
	}
	return granted
}

// offers holds what the target offers, and knows which session has chosen and opened what. A
// session has its volume open from the configuration of its data path until the release of its
// lanes, when no IO of it can take effect any more. The methods may be called concurrently.
type offers struct {
	mu       sync.Mutex // guards what follows
	byName   map[string]*offer
	sessions map[*session]*opening
	holds    map[volume.Volume][]*hold // oldest first, with some that are over
}

// offer is an Offer under its name.
type offer struct {
	Offer
	name     string
	counters *datapath.CounterSet
	users    int           // sessions that have chosen it
	removed  bool          // it accepts no more sessions
	unused   chan struct{} // closed when it is removed and the last session has left
}

// opening is a session's choice, and what the session has said when it opened the volume.
type opening struct {
	offer  *offer
	open   bool
	hold   *hold // while it is open
	owner  [16]byte
	uses   Access // what the session makes use of
	claim  claim
	client string
	since  time.Time
	nobody bool          // the holder that it was to preempt was not there
	left   chan struct{} // closed when the session has left
}

// claim is what a session keeps other owners from.
type claim uint8

const (
	noClaim claim = iota
	// soleWriter keeps others from writing, as the SCSI reservation "write exclusive".
	soleWriter
	// soleUser keeps others from opening the volume, as "exclusive access".
	soleUser
)

// excludes reports whether a session with what o says cannot exist beside one with what other says.
func (o *opening) excludes(other *opening) bool {
	return o.claim == soleUser || o.claim == soleWriter && other.uses >= WriteAccess
}

func newOffers(offered map[string]Offer) (*offers, error) {
	x := &offers{byName: make(map[string]*offer), sessions: make(map[*session]*opening),
		holds: make(map[volume.Volume][]*hold)}
	for name, o := range offered {
		if err := x.add(name, o); err != nil {
			return nil, err
		}
	}
	return x, nil
}

// add offers a volume under a name.
func (x *offers) add(name string, o Offer) error {
	if o.Volume == nil || name == "" || len(name) > controlmsg.MaxVolumeNameLength {
		return status.Errorf(status.InvalidValue, "offer volume %q: the name has not 1 to %d bytes, "+
			"or there is no volume", name, controlmsg.MaxVolumeNameLength)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.byName[name] != nil {
		return status.Errorf(status.AlreadyExist, "the target already offers a volume %q", name)
	}
	x.byName[name] = &offer{Offer: o, name: name, counters: &datapath.CounterSet{},
		unused: make(chan struct{})}
	return nil
}

// offered returns the volume of that name.
func (x *offers) offered(name string) (*offer, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.offeredLocked(name)
}

func (x *offers) offeredLocked(name string) (*offer, error) {
	offer := x.byName[name]
	if offer == nil {
		return nil, status.Errorf(status.NotFound, "the target offers no volume %q", name)
	}
	return offer, nil
}

// remove offers a volume no more. It returns the offer with the sessions that still use it.
func (x *offers) remove(name string) (*offer, []*session, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	offer, err := x.offeredLocked(name)
	if err != nil {
		return nil, nil, err
	}
	delete(x.byName, name)
	offer.removed = true
	if offer.users == 0 {
		close(offer.unused)
	}
	var using []*session
	for s, o := range x.sessions {
		if o.offer == offer {
			using = append(using, s)
		}
	}
	x.forgetHoldsLocked(offer.Volume)
	return offer, using, nil
}

// all returns what is offered, by name.
func (x *offers) all() map[string]*offer {
	x.mu.Lock()
	defer x.mu.Unlock()
	return maps.Clone(x.byName)
}

// only returns the name of the volume, if there is just one.
func (x *offers) only() (string, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	names := slices.Collect(maps.Keys(x.byName))
	if len(names) != 1 {
		return "", status.Errorf(status.BadConfig, "the target offers %d volumes, and the relay's "+
			"protocol cannot name one: offer one volume", len(names))
	}
	return names[0], nil
}

// choose makes s a user of a volume, instead of the one that it has chosen before. It also returns
// what s may do.
func (x *offers) choose(s *session, name string) (*offer, Access, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	offer := x.byName[name]
	if offer == nil {
		return nil, NoAccess, status.Errorf(status.NotFound,
			"the target has no volume %q: it has %s", name, x.namesLocked(s))
	}
	access := offer.access(s.relayNames)
	if access == NoAccess {
		return nil, NoAccess, s.notPermitted(offer)
	}
	if o := x.sessions[s]; o == nil || o.offer != offer {
		x.leaveLocked(s)
		x.sessions[s] = &opening{offer: offer, left: make(chan struct{})}
		offer.users++
	}
	return offer, access, nil
}

// notPermitted returns the error for a session whose relay has no right to use the volume, or not
// the one that the session makes use of.
func (s *session) notPermitted(offer *offer) error {
	return status.Errorf(status.NotPermitted,
		"relay %s may not use volume %q, or not in this way: its certificate is for %s", s.peer,
		offer.name, mutualtls.Describe(s.relayNames))
}

// setRights changes who may do what with a volume. It returns the sessions that make use of what
// their relays have lost.
func (x *offers) setRights(name string, rights []Right) ([]*session, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	offer, err := x.offeredLocked(name)
	if err != nil {
		return nil, err
	}
	offer.Rights = rights
	var lost []*session
	for s, o := range x.sessions {
		uses := ReadAccess
		if o.open {
			uses = o.uses
		}
		if o.offer == offer && offer.access(s.relayNames) < uses {
			lost = append(lost, s)
		}
	}
	return lost, nil
}

// accessOf returns what s may do with the volume that it has chosen.
func (x *offers) accessOf(s *session) Access {
	x.mu.Lock()
	defer x.mu.Unlock()
	return s.offer.access(s.relayNames)
}

// describeSession completes the status of s.
func (x *offers) describeSession(s *session, to *SessionStatus) {
	x.mu.Lock()
	defer x.mu.Unlock()
	o := x.sessions[s]
	if o == nil {
		return
	}
	if to.Volume = o.offer.name; o.open {
		to.Client, to.HolderID = o.client, o.hold.id
	}
}

// namesLocked lists the volumes that s may use, for an error.
func (x *offers) namesLocked(s *session) string {
	var names []string
	for name, offer := range x.byName {
		if offer.access(s.relayNames) > NoAccess {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return printable.Names(names)
}

// writers returns the leases of the other sessions that may change the volume of s.
func (x *offers) writers(s *session) []*lease.Session {
	x.mu.Lock()
	defer x.mu.Unlock()
	own := x.sessions[s]
	var leases []*lease.Session
	for other, o := range x.sessions {
		if other != s && o.open && o.uses >= WriteAccess && o.offer.Volume == own.offer.Volume &&
			!other.hasEnded() {
			leases = append(leases, other.lease)
		}
	}
	return leases
}

// awaitEnded waits until the sessions of s's volume that have ended by now can change it no more.
// Their writes may still be in flight, for instance to storage that does not answer, and would
// otherwise overwrite what s is about to write.
func (x *offers) awaitEnded(ctx context.Context, s *session) error {
	x.mu.Lock()
	offer := x.sessions[s].offer
	ended := x.endedLocked(offer.Volume)
	x.mu.Unlock()
	if len(ended) > 0 {
		s.log.Info("waiting until sessions of the volume that have ended have no IO in flight",
			zap.String("volume", offer.name), zap.Int("sessions", len(ended)))
	}
	return awaitLeft(ctx, offer.name, ended)
}

// endedLocked returns the sessions that have ended and may still change the volume.
func (x *offers) endedLocked(v volume.Volume) []*opening {
	var ended []*opening
	for s, o := range x.sessions {
		if o.open && o.uses >= WriteAccess && o.offer.Volume == v && s.hasEnded() {
			ended = append(ended, o)
		}
	}
	return ended
}

// awaitLeft waits until sessions of a volume have left it.
func awaitLeft(ctx context.Context, name string, ended []*opening) error {
	for _, o := range ended {
		select {
		case <-o.left:
		case <-ctx.Done():
			return status.Errorf(status.TimeOut, "wait until a session of volume %q that has ended "+
				"has no IO in flight any more: %w", name, ctx.Err())
		}
	}
	return nil
}

// open records that s opens the volume that it has chosen, and what for, and preempts the holder
// that m names. It returns the owner's ID as a holder. It fails with status.InUse, and preempts
// nobody, if another owner has the volume open, and one of the two excludes the other.
func (x *offers) open(
	s *session, m *controlmsg.ConfigureDataPath, uses Access, claim claim,
) (controlmsg.HolderID, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	own := x.sessions[s]
	if own.offer != s.offer {
		return 0, status.Errorf(status.BadState, "volume %q could not be opened", own.offer.name)
	}
	if own.offer.removed {
		return 0, errRemoved
	}
	v, needs := own.offer.Volume, uses
	if m.Preempt != 0 {
		needs = PreemptAccess
	}
	if own.offer.access(s.relayNames) < needs {
		return 0, s.notPermitted(own.offer)
	}
	var preempted *hold
	if m.Preempt != 0 {
		var err error
		if preempted, err = x.compareLocked(v, m.Preempt, &m.Owner); err != nil {
			return 0, err
		}
	} else if x.isBarredLocked(v, m.Owner) {
		return 0, status.Errorf(status.NotPermitted, "volume %q: this client has been preempted: it may "+
			"only come back as a new one", own.offer.name)
	}
	own.uses, own.claim = uses, claim
	own.nobody = m.Preempt != 0 && x.isAbsentLocked(v, m.Preempt)
	if err := x.refusalLocked(own, m.Owner, preempted); err != nil {
		return 0, err
	}
	own.open, own.owner, own.hold = true, m.Owner, x.enterLocked(v, m.Owner)
	own.client, own.since = m.Client, time.Now()
	if preempted != nil {
		x.preemptLocked(preempted, own.hold, status.Errorf(status.InUse,
			"volume %q: preempted by %s", own.offer.name, own.user(s)))
	}
	if m.Preempt != 0 {
		x.readmitLocked(v, m.Owner)
	}
	return own.hold.id, nil
}

// refusalLocked returns an error if another owner than the given one has the volume open, and its
// session and that of own exclude each other. Sessions of the hold that own preempts do not count.
func (x *offers) refusalLocked(own *opening, owner [16]byte, preempts *hold) (refusal error) {
	for s, o := range x.sessions {
		if !o.open || o.owner == owner || o.offer.Volume != own.offer.Volume ||
			preempts != nil && o.hold == preempts {
			continue
		}
		var err error
		switch {
		case o.excludes(own):
			err = s.isInTheWay("volume %q is open exclusively by %s", own.offer.name,
				o.describeHolder(s))
		case own.excludes(o):
			err = s.isInTheWay("volume %q cannot be opened exclusively: it is open by %s",
				own.offer.name, o.describeHolder(s))
		}
		if refusal == nil || err != nil && !o.hold.preempted { // rather than one that is gone
			refusal = err
		}
	}
	return refusal
}

// close records that s has its volume open no longer. It has no effect if s has none.
func (x *offers) close(s *session) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if o := x.sessions[s]; o != nil {
		x.closeLocked(o)
	}
}

// leave ends what choose and open have begun. It has no effect if they have not.
func (x *offers) leave(s *session) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.leaveLocked(s)
}

func (x *offers) leaveLocked(s *session) {
	o := x.sessions[s]
	if o == nil {
		return
	}
	x.closeLocked(o)
	delete(x.sessions, s)
	close(o.left)
	o.offer.users--
	if o.offer.users == 0 && o.offer.removed {
		close(o.offer.unused)
		x.forgetHoldsLocked(o.offer.Volume)
	}
}

// describe returns who has the volume of an offer open.
func (x *offers) describe(offer *offer) Use {
	x.mu.Lock()
	defer x.mu.Unlock()
	var use Use
	for s, o := range x.sessions {
		if !o.open || o.offer.Volume != offer.Volume {
			continue
		}
		use.Sessions++
		if o.claim > noClaim && !o.hold.preempted {
			use.Holder, use.HolderID = o.describe(s), o.hold.id
		}
	}
	return use
}

func (o *opening) describe(s *session) string {
	return fmt.Sprintf("%s since %s", o.user(s), o.since.UTC().Format(time.RFC3339))
}

// user returns the client of a session, for people.
func (o *opening) user(s *session) string {
	client := o.client
	if client == "" {
		client = "a client without a name"
	}
	return fmt.Sprintf("%s through relay %s", client, s.peer)
}

// describeHolder is describe with the ID by which others can preempt the session's owner.
func (o *opening) describeHolder(s *session) string {
	return fmt.Sprintf("%s (holder %v)", o.describe(s), o.hold.id)
}

// removed is why the sessions of a volume end that the target offers no more.
const removed = "the volume is being removed from the target"

var errRemoved = status.Errorf(status.Shutdown, removed)

// Offer makes the target serve a volume under a name. It fails with status.AlreadyExist if the name
// is taken, and with status.ErrClosed after Close.
func (t *Target) Offer(name string, o Offer) error {
	if t.closed.Load() {
		return fmt.Errorf("offer volume %q: the target: %w", name, status.ErrClosed)
	}
	return t.offers.add(name, o)
}

// Withdraw makes the target serve the volume of that name no more. New sessions are refused at
// once; existing ones are drained for the time that drain allows, Config.DrainTimeout if it is not
// set, and ended. Withdraw returns when nothing uses the volume any more, so that it can be
// closed. If ctx ends before, it fails, and the volume must stay open until Run has returned.
func (t *Target) Withdraw(ctx context.Context, name string, drain retry.Bound) error {
	offer, using, err := t.offers.remove(name)
	if err != nil {
		return err
	}
	draining, cancel := drain.Or(t.config.DrainTimeout).Context(ctx)
	defer cancel()
	endSessions(draining, using, removed)
	select {
	case <-offer.unused:
		return nil
	case <-ctx.Done():
		return status.Errorf(status.InUse, "remove volume %q: sessions still use it: %w", name,
			status.ContextError(ctx))
	}
}

// SetRights changes who may do what with the volume of that name. Sessions go on unless they make
// use of what their relays have lost: those end at once, with status.NotPermitted. Who has gained a
// right can use it in new sessions.
func (t *Target) SetRights(name string, rights []Right) error {
	lost, err := t.offers.setRights(name, rights)
	for _, s := range lost {
		s.cancel(status.Errorf(status.NotPermitted,
			"the relay has lost its right to use volume %q, or to use it in this way", name))
	}
	return err
}

// Use is who has a volume open, under any of its names.
type Use struct {
	Sessions int
	// Holder is the client that has the volume open exclusively, "" if none has. HolderID names it
	// for Preempt.
	Holder   string
	HolderID controlmsg.HolderID
}

// Uses returns who has the volumes open that the target serves, by name.
func (t *Target) Uses() map[string]Use {
	uses := make(map[string]Use)
	for name, offer := range t.offers.all() {
		uses[name] = t.offers.describe(offer)
	}
	return uses
}
