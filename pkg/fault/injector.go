// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zc-relay/zc-relay/pkg/status"
)

// MaxRules is how many rules an Injector may have.
const MaxRules = 64

// ErrInjected distinguishes injected failures from real ones.
var ErrInjected = errors.New("injected fault")

// Injector applies rules to the operations that hooks report. Its methods may be called
// concurrently. A nil Injector is one without rules.
type Injector struct {
	rules    []*activeRule
	recorder *Recorder

	mu       sync.Mutex           // guards what follows
	released chan struct{}        // closed and replaced at each release
	waiters  map[*Waiter]struct{} // of threads that may sleep while something is frozen
}

// activeRule is a rule with its state.
type activeRule struct {
	Rule
	on       atomic.Bool   // the rule's switch is on, or it has none
	seen     atomic.Uint64 // operations counted so far
	matches  atomic.Uint64
	releases atomic.Uint64 // how often what the rule has frozen was released
	failure  error         // what operations fail with
	lost     error         // what Hit.Lost returns
}

// New returns an injector of rules. recorder, if it is not nil, receives every match. New fails
// with status.InvalidValue if a rule is invalid or there are too many.
func New(rules []Rule, recorder *Recorder) (*Injector, error) {
	if len(rules) > MaxRules {
		return nil, status.Errorf(status.InvalidValue, "%d fault rules, the limit is %d",
			len(rules), MaxRules)
	}
	i := &Injector{recorder: recorder, released: make(chan struct{}),
		waiters: make(map[*Waiter]struct{})}
	for _, rule := range rules {
		if err := rule.validate(); err != nil {
			return nil, status.Errorf(status.InvalidValue, "fault rule %v: %w", rule, err)
		}
		active := &activeRule{Rule: rule}
		active.on.Store(rule.Switch == "")
		active.failure = status.Errorf(rule.Code, "%w of rule %v", ErrInjected, rule)
		if rule.Cause != status.CauseUnknown {
			active.failure = status.Errorf(rule.Code, "%w of rule %v: %w", ErrInjected, rule,
				rule.Cause)
		}
		active.lost = status.Errorf(status.NotConnected, "%w of rule %v", ErrInjected, rule)
		i.rules = append(i.rules, active)
	}
	return i, nil
}

// TurnOn turns a switch on: rules that name it match from now on. All switches are off at first.
// TurnOn("") turns on every switch.
func (i *Injector) TurnOn(name string) {
	if i == nil {
		return
	}
	for _, r := range i.rules {
		if r.Switch != "" && (name == "" || r.Switch == name) {
			r.on.Store(true)
		}
	}
}

// TurnOff turns a switch off, or every switch if name is "", and releases what rules that name it
// have frozen.
func (i *Injector) TurnOff(name string) {
	i.release(func(r *activeRule) bool {
		if r.Switch == "" || name != "" && r.Switch != name {
			return false
		}
		r.on.Store(false)
		return true
	})
}

// Release lets everything continue that is frozen. Rules may freeze later operations again.
func (i *Injector) Release() { i.release(func(*activeRule) bool { return true }) }

func (i *Injector) release(of func(*activeRule) bool) {
	if i == nil {
		return
	}
	for _, r := range i.rules {
		if of(r) {
			r.releases.Add(1)
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	close(i.released)
	i.released = make(chan struct{})
	for w := range i.waiters {
		w.ring()
	}
}

// RuleStatus describes a rule at work.
type RuleStatus struct {
	Rule    Rule
	Seen    uint64 // operations that the rule has counted
	Matches uint64
}

// Rules returns the status of every rule.
func (i *Injector) Rules() []RuleStatus {
	if i == nil {
		return nil
	}
	var all []RuleStatus
	for _, r := range i.rules {
		all = append(all, RuleStatus{Rule: r.Rule, Seen: r.seen.Load(), Matches: r.matches.Load()})
	}
	return all
}

// Has reports whether there are rules for a seam.
func (i *Injector) Has(seam Seam) bool {
	return i != nil && slices.ContainsFunc(i.rules,
		func(r *activeRule) bool { return r.Seam == seam })
}

// Point is an operation that has rules. A nil *Point is an operation without rules.
type Point struct {
	injector  *Injector
	seam      Seam
	operation string
	rules     []*activeRule
}

// Point returns the rules of an operation, or nil if there are none. It panics if the seam has no
// such operation.
func (i *Injector) Point(seam Seam, operation string) *Point {
	may, exists := allowed(seam, operation)
	if !exists || operation == Any {
		panic(fmt.Sprintf("fault: %s:%s is not an operation", seam, operation))
	}
	if i == nil {
		return nil
	}
	p := &Point{injector: i, seam: seam, operation: operation}
	for _, r := range i.rules {
		if r.Seam == seam && (r.Operation == operation || r.Operation == Any) &&
			may.has(r.Action) {
			p.rules = append(p.rules, r)
		}
	}
	if len(p.rules) == 0 {
		return nil
	}
	return p
}

// CanStall reports whether a rule delays or freezes the operation.
func (p *Point) CanStall() bool {
	return p != nil && slices.ContainsFunc(p.rules, func(r *activeRule) bool {
		return r.Action == Delay || r.Action == Freeze
	})
}

// NeedsKind reports whether a rule depends on the kind of message.
func (p *Point) NeedsKind() bool {
	return p != nil && slices.ContainsFunc(p.rules,
		func(r *activeRule) bool { return r.Kind != "" })
}

// Next counts an operation on size bytes and returns what happens to it. If several rules match, it
// is what the first of them says; all of them count, and all matches are recorded.
func (p *Point) Next(size uint64) Hit { return p.next(size, "", 0, 0) }

// NextOf is Next for a message of the given kind.
func (p *Point) NextOf(size uint64, kind string) Hit { return p.next(size, kind, 0, 0) }

// NextAt is Next for an operation on size bytes of a volume from offset on.
func (p *Point) NextAt(offset, size uint64) Hit { return p.next(size, "", offset, size) }

// next is Next for a message of a kind, or for an operation on length bytes of a volume.
func (p *Point) next(size uint64, kind string, offset, length uint64) Hit {
	if p == nil {
		return Hit{}
	}
	var hit Hit
	for _, r := range p.rules {
		// Read before the switch, so that turning it off meanwhile releases this operation.
		releases := r.releases.Load()
		if r.Kind != "" && r.Kind != kind || !r.on.Load() ||
			r.Range.Length != 0 && !r.Range.touches(offset, length) {
			continue
		}
		number := r.seen.Add(1)
		random := mix(r.Seed, number)
		if !r.matchesNumber(number, random) {
			continue
		}
		r.matches.Add(1)
		if recorder := p.injector.recorder; recorder != nil {
			recorder.events.Record(&Event{Time: time.Now(), Seam: p.seam, Operation: p.operation,
				Kind: kind, Action: r.Action, Size: size, Number: number})
		}
		if hit.Action == None && r.Action != Trace {
			hit = Hit{Action: r.Action, rule: r, random: mix(random, number), releases: releases}
		}
	}
	return hit
}

func (r *activeRule) matchesNumber(number, random uint64) bool {
	return (r.Every == 0 || number%r.Every == 0) &&
		(r.Nth == 0 || number == r.Nth) &&
		number > r.After &&
		(r.Probability == 0 || float64(random>>11)/(1<<53) < r.Probability)
}

// mix returns a number that depends on seed and n and looks random (SplitMix64).
func mix(seed, n uint64) uint64 {
	z := seed + n*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Hit is what happens to an operation.
type Hit struct {
	Action   Action // None or another one, but not Trace
	rule     *activeRule
	random   uint64
	releases uint64
}

// Err returns what the operation fails with, for the action Error, and nil without a rule.
func (h Hit) Err() error {
	if h.rule == nil {
		return nil
	}
	return h.rule.failure
}

// Lost returns what an operation fails with whose connection the action Drop has ended, or that was
// held back until its connection ended. It is nil without a rule.
func (h Hit) Lost() error {
	if h.rule == nil {
		return nil
	}
	return h.rule.lost
}

// Stalls reports whether the action is Delay or Freeze.
func (h Hit) Stalls() bool { return h.Action == Delay || h.Action == Freeze }

// Corrupt inverts one bit of data, which may be empty.
func (h Hit) Corrupt(data []byte) {
	if len(data) > 0 {
		data[h.random%uint64(len(data))] ^= 1 << (h.random >> 61)
	}
}

// Stall returns how long the operation is held back.
func (h Hit) Stall() Stall {
	switch h.Action {
	case Delay:
		return Stall{due: time.Now().Add(h.rule.Delay)}
	case Freeze:
		return Stall{rule: h.rule, releases: h.releases}
	}
	return Stall{}
}

// Stall is how long something is held back. The zero value is over.
type Stall struct {
	due      time.Time
	rule     *activeRule // the rule that has frozen it, if any
	releases uint64      // of the rule when it did
}

// IsOver reports whether what was held back continues.
func (s *Stall) IsOver() bool {
	if s.rule != nil {
		return s.rule.releases.Load() != s.releases
	}
	return s.due.IsZero() || !time.Now().Before(s.due)
}

// Due returns how long it is until what was held back continues; false if that is not known.
func (s *Stall) Due() (time.Duration, bool) {
	return time.Until(s.due), !s.due.IsZero()
}

// IsBefore reports whether s is over at a known time, and other later or at an unknown time.
func (s *Stall) IsBefore(other *Stall) bool {
	return !s.due.IsZero() && (other.due.IsZero() || s.due.Before(other.due))
}

// Enter is Next for an operation that may block: it waits while a rule holds the operation back,
// and returns the error if a rule makes it fail. The wait ends early if ctx ends, with an error, or
// if ended is closed, without one. ended may be nil.
func (p *Point) Enter(ctx context.Context, ended <-chan struct{}, size uint64) (Hit, error) {
	if p == nil {
		return Hit{}, nil
	}
	hit := p.Next(size)
	return hit, p.Carry(ctx, ended, hit)
}

// Carry does what Enter does, for a hit that Next has returned.
func (p *Point) Carry(ctx context.Context, ended <-chan struct{}, hit Hit) error {
	switch hit.Action {
	case Error:
		return hit.Err()
	case Delay, Freeze:
		stall := hit.Stall()
		return p.injector.wait(ctx, ended, &stall)
	}
	return nil
}

// wait waits until a stall is over.
func (i *Injector) wait(ctx context.Context, ended <-chan struct{}, stall *Stall) error {
	var due <-chan time.Time
	if stall.rule == nil {
		timer := time.NewTimer(time.Until(stall.due))
		defer timer.Stop()
		due = timer.C
	}
	for {
		i.mu.Lock()
		released := i.released
		i.mu.Unlock()
		if stall.IsOver() {
			return nil
		}
		select {
		case <-due:
			return nil
		case <-released:
		case <-ended:
			return nil
		case <-ctx.Done():
			cause := status.ContextError(ctx)
			return status.Errorf(status.CodeOf(cause), "%w held the operation back: %w",
				ErrInjected, cause)
		}
	}
}
