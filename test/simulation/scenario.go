// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"math/rand/v2"
	"time"
)

// asScenario returns the plan as a scenario: an owner with changes in flight, something that delays
// them or what others learn of their end, an end meanwhile, and an heir. A plan that draws its
// faults independently of each other rarely has all of them at a time.
func (p Plan) asScenario(r *rand.Rand) Plan {
	p.Relays, p.Heirs, p.Callers, p.CallersLeaveAfter = 2, 1, 0, 0
	p.Applications, p.Requests, p.IOPS = 1, 10+r.IntN(20), 0
	p.Depth = 2 + r.IntN(7)
	p.Exclusive = pick(r, "", "", ByClient, ByTarget)
	p.Mortal, p.Blocking, p.Prompt = r.IntN(2) == 0, r.IntN(6) == 0, r.IntN(2) == 0
	p.RelayIOTimeout = pick(r, 300*time.Millisecond, time.Second, 5*time.Second)
	p.ClientIOTimeout = pick(r, 500*time.Millisecond, 10*time.Second)
	p.Faults = nil

	s := scenario{plan: &p, random: r, step: 300 + r.IntN(400), long: r.IntN(2) == 0}
	if s.long {
		p.SilenceLimit = 2 * longestHold
	}
	s.add(0, s.delay())
	p.Faults[0].Changes = 1 + r.IntN(2)
	ends := 1 + r.IntN(2)
	switch {
	case s.long:
		s.add(time.Duration(r.Int64N(int64(leaseLength))), s.end())
		ends--
	case p.Faults[0].Kind == DeafRelay:
		// The owner's changes arrive when its heir has opened the volume, and before the relay
		// learns of its death.
		p.Prompt, p.Exclusive = true, ""
		s.add(0, Fault{Kind: Hold, Scope: pick(r, DataConnections, ""), Order: pick(r, "", DataFirst),
			For: p.Faults[0].For * 3 / 4})
		s.add(s.within(leaseLength/4), Fault{Kind: KillOwner, Relay: 1})
		return p
	case r.IntN(3) == 0:
		s.add(s.within(leaseLength/4), s.delay())
	}
	for range ends {
		s.add(s.within(leaseLength), s.end())
	}
	return p
}

// scenario draws the faults of a scenario. Its only estate is on the first target.
type scenario struct {
	plan   *Plan
	random *rand.Rand
	step   int
	relay  int // of the estate's owner
	// long delays take more than a lease, so that owners are told of failures meanwhile. Nobody
	// ends a peer for being silent, and heirs often come by the same relay: otherwise that, or the
	// roll call, ends what is delayed. During the others the target lets changes pass.
	long bool
}

// add adds a fault that begins some time after the one before.
func (s *scenario) add(after time.Duration, f Fault) {
	f.Step, f.After = s.step, after
	s.plan.Faults = append(s.plan.Faults, f)
}

// within draws a time up to a bound. Half of them are short.
func (s *scenario) within(bound time.Duration) time.Duration {
	if s.random.IntN(2) == 0 {
		bound /= 8
	}
	return time.Duration(s.random.Int64N(int64(bound)))
}

// delay draws a fault that keeps the owner's changes, or the news of its end, from arriving.
func (s *scenario) delay() Fault {
	r := s.random
	f := Fault{Relay: s.relay, For: leaseLength/20 + time.Duration(r.Int64N(int64(leaseLength))),
		Kind: pick(r, Hold, Hold, Hold, DeafRelay, DeafRelay, FreezeRelay, FreezeRelay,
			FreezeTarget, StallDisk)}
	if s.long {
		f.For = leaseLength*5/4 + time.Duration(r.Int64N(int64(2*leaseLength)))
		f.Kind = pick(r, Hold, Hold, Hold, Hold, Hold, FreezeRelay, FreezeTarget, StallDisk)
	}
	if f.Kind == Hold {
		f.Subject = s.plan.Targets * r.IntN(64)
		f.Scope = pick(r, append(scopes, "", "", "", ToTarget, ToTarget)...)
		f.Order = pick(r, append(orders, DataFirst, DataFirst, Split, Split)...)
		if s.long && r.IntN(4) == 0 {
			f.Scope, f.Order = ToTarget, Split // so that old answers arrive before data
		}
	}
	return f
}

// end draws a fault that ends the owner, or its session, and perhaps calls for an heir.
func (s *scenario) end() Fault {
	r := s.random
	f := Fault{Relay: s.relay, Subject: r.IntN(64),
		For: time.Duration(r.ExpFloat64() * float64(leaseLength) / 2)}
	f.Kind = pick(r, KillOwner, KillOwner, KillOwner, EndOwner, EndOwner, EndOwner, FreezeOwner,
		OwnerLeaves, PreemptOwner, KillRelay)
	if s.long && r.IntN(2) == 0 {
		f.Kind, f.Subject = EndOwner, 0 // at the relay
	}
	if f.Kind != KillRelay && (!s.long || r.IntN(4) == 0) {
		s.relay = r.IntN(s.plan.Relays)
		f.Relay = s.relay
	}
	return f
}
