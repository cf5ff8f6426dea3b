// SPDX-License-Identifier: Apache-2.0

package ends

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
)

// end is what ends the session of the first owner.
type end int

// From relayTimeout on, the first owner's relay has a short IO timeout.
const (
	ownerKilled    end = iota
	ownerPreempted     // by the heir
	ownerTimeout       // the client's own IO timeout expires
	relayTimeout       // the relay's IO timeout expires
	relayFrozen        // until after the owner has given up on it
	relayKilled        // and started again if the heir uses the same one
	targetFrozen
	targetKilled            // and started again
	targetKilledForGood     // a stand-by takes over
	targetTerminatedForGood // by SIGTERM; a stand-by takes over
	ends
)

// isTakeOver reports whether a stand-by takes over from the target. It could not if that were
// frozen: the kernel keeps the lock on the file for as long as the process exists.
func (e end) isTakeOver() bool { return e >= targetKilledForGood }

// lastHost returns the target that serves the volume afterwards.
func (e end) lastHost() host {
	if e.isTakeOver() {
		return 1
	}
	return 0
}

func (e end) String() string {
	return [ends]string{"owner killed", "owner preempted", "IO timeout of owner",
		"IO timeout of relay", "relay frozen", "relay killed", "target frozen", "target killed",
		"target killed, stand-by", "target terminated, stand-by"}[e]
}

// heir is who writes the same blocks after the end.
type heir int

const (
	sameRelay    heir = iota // opens the volume through the same relay
	otherRelay               // opens it through another relay
	livingWriter             // has it open all the time, through another relay
	itself                   // the first owner opens it again
	heirs
)

func (h heir) String() string {
	return [heirs]string{"same relay", "other relay", "living writer", "itself"}[h]
}

// untilAcknowledged is the length of a stall that ends when the heir's writes are acknowledged.
const untilAcknowledged = time.Duration(0)

// longestStall bounds a stall that ends when the heir's writes are acknowledged.
const longestStall = 15 * time.Second

// longestDelay bounds the delay of a take-over in a stall without a length.
const longestDelay = time.Second

// round is an end of an owner with requests in flight, and the beginning of an heir.
type round struct {
	end   end
	heir  heir
	stall time.Duration // how long the network holds bytes

	// What follows is drawn.
	held      stall
	answers   bool // also what the target sends
	order     order
	gap       time.Duration // how long the rest of the connections is held longer
	early     bool          // the heir does not wait until the first owner is told
	thawLast  bool          // what is frozen continues after the stall, not before it
	exclusive bool
	fua       bool
	isolation string
	blockSize int
	random    *rand.Rand

	// These are of take-overs.
	delay        time.Duration // how much later than the stall the former target ends
	everywhere   bool          // the network holds what all relays have sent to the former target
	addressMoves bool          // the address of the former target leads to the next one
}

const (
	blocks = 128 // of the volume; the heir writes the first half
	depth  = 32
)

// draw draws the rest of a round.
func (r *round) draw(seed uint64) {
	r.random = rand.New(rand.NewPCG(seed, uint64(r.end)<<8|uint64(r.heir)<<4))
	flip := func() bool { return r.random.IntN(2) == 0 }
	r.held = stall{ends: flip(), fresh: r.random.IntN(4) == 0 && r.stall != untilAcknowledged}
	r.answers = flip()
	r.order = []order{dataFirst, dataFirst, controlFirst, anyOrder}[r.random.IntN(4)]
	r.gap = []time.Duration{0, 300 * time.Millisecond, time.Second,
		2500 * time.Millisecond}[r.random.IntN(4)]
	r.early, r.thawLast, r.fua = flip(), flip(), flip()
	r.exclusive = r.heir != livingWriter && r.random.IntN(4) == 0
	r.isolation = "direct"
	if r.random.IntN(4) == 0 {
		r.isolation = "staged"
	}
	r.blockSize = []int{4 << 10, 16 << 10, 64 << 10}[r.random.IntN(3)]
	if r.end.isTakeOver() {
		r.everywhere, r.addressMoves, r.held.fresh = flip(), flip(), flip()
		stall := cmp.Or(r.stall, longestDelay)
		r.delay = []time.Duration{0, stall / 3, stall * 2 / 3,
			stall + ioTimeout + r.gap/2}[r.random.IntN(4)]
	}
}

func (r *round) String() string {
	return fmt.Sprintf("%v, %v, stall %v (ends %v, fresh connections %v, answers %v), %v with gap "+
		"%v, early %v, thaw last %v, exclusive %v, FUA %v, %s, blocks of %d, everywhere %v, "+
		"address moves %v, delay %v",
		r.end, r.heir, stallName(r.stall), r.held.ends, r.held.fresh, r.answers, r.order,
		r.gap, r.early, r.thawLast, r.exclusive, r.fua, r.isolation, r.blockSize, r.everywhere,
		r.addressMoves, r.delay)
}

// outcome is what a round has measured, and found.
type outcome struct {
	told     time.Duration // how long after the beginning of the stall; 0 if the owner was killed
	open     time.Duration // how long the heir's open has taken; 0 if it had the volume open
	findings []string
}

// play plays a round. It begins anew on a machine that is too busy: if the IO timeout expires
// before the stall, or not before the network has delivered everything again.
func (r *round) play(t *testing.T) outcome {
	for {
		p := newPlace(t, r)
		if p.beginStall() {
			if o, played := p.play(); played {
				return o
			}
		}
		p.leave()
	}
}

// beginStall lets the first owner write, and then holds what the relay sends for it. It returns
// false if the owner's session has ended before.
func (p *place) beginStall() bool {
	p.journal.add("%v", p.round)
	p.first.order(openCommand, loadCommand)
	if p.round.heir == livingWriter {
		p.heir.order(openCommand)
		p.heir.await(opened)
	}
	is := func(condition func() bool) func() bool {
		return func() bool { return condition() || p.first.has(told) }
	}
	testkit.Eventually(p.t, "the first owner writes",
		is(func() bool { return p.first.has(loading) }))
	p.begun = time.Now()
	for _, n := range p.stalled {
		n.hold(p.round.held)
	}
	testkit.Eventually(p.t, "the network holds requests", is(func() bool {
		return p.networks[0].held() >= depth*p.round.blockSize/2
	}))
	if p.round.answers {
		for _, n := range p.stalled {
			n.holdAnswers()
		}
	}
	return !p.first.has(told)
}

// play plays a round whose stall has begun, unless the first owner's session does not end.
func (p *place) play() (o outcome, played bool) {
	defer p.keepLogs()
	t, r := p.t, p.round
	toldFirst, acknowledgedByHeir := make(chan struct{}), make(chan struct{})
	healed := p.healLater(toldFirst, acknowledgedByHeir)
	p.carryOutEnd()

	// The volume when the first owner was told, and when the heir opened it.
	var atTold, atOpen []byte
	inherit := func() {
		p.startHeir()
		if r.heir != livingWriter {
			o.open = p.heir.await(opened).At.Sub(p.heir.ordered)
			atOpen = p.content()
		}
		p.heir.await(acknowledged)
		close(acknowledgedByHeir)
	}
	if r.isEarly() {
		if r.end.isTakeOver() {
			p.targets[0].Wait() // until then the first owner may have the volume, too
		}
		inherit()
	}
	if r.end != ownerKilled {
		if !p.awaitTold() {
			<-healed
			return o, false
		}
		o.told = p.first.await(told).At.Sub(p.begun)
		atTold = p.content()
		close(toldFirst)
	}
	if !r.isEarly() {
		inherit()
	}
	<-healed
	p.takingOver.Wait()
	for _, n := range p.networks {
		n.awaitDelivery(t)
	}
	if r.end == targetTerminatedForGood {
		if code := p.targets[0].Wait(); code != 0 {
			o.findings = append(o.findings, fmt.Sprintf("the former target exits with %d", code))
		}
	}
	testkit.Eventually(t, "the target has the heir's queue alone, if that", func() bool {
		n := p.queues()
		return n == 0 || n == 1
	})
	final := p.content()
	p.heir.order(readCommand)
	if e := p.heir.await(compared); e.Detail != "" {
		o.findings = append(o.findings, "the heir reads other content: "+e.Detail)
	}
	o.findings = append(o.findings, r.judge(atTold, atOpen, final)...)
	p.journal.add("told after %v, opened within %v", o.told, o.open)
	for _, finding := range o.findings {
		p.journal.add("%s", finding)
		t.Errorf("%v: %s", r, finding)
	}
	return o, true
}

// isEarly reports whether the heir begins before the first owner is told.
func (r *round) isEarly() bool {
	switch r.end {
	case ownerKilled, ownerPreempted:
		return true
	case relayFrozen, relayKilled:
		return r.early && r.heir == otherRelay
	case targetKilledForGood, targetTerminatedForGood:
		return r.early && r.heir != itself
	}
	return false
}

// awaitTold waits until the first owner is told that its requests have failed. It returns false if
// the owner goes on instead.
func (p *place) awaitTold() bool {
	written := p.first.events.count(loading)
	testkit.Eventually(p.t, "the first owner is told", func() bool {
		return p.first.has(told) || p.first.events.count(loading) > written
	})
	return p.first.has(told)
}

// judge compares the volume at the end with what it was when the first owner was told and when the
// heir had opened it, if that has happened. The heir has written the first half since.
func (r *round) judge(atTold, atOpen, final []byte) (findings []string) {
	half := blocks / 2 * r.blockSize
	written := make([]byte, half)
	for i := range blocks / 2 {
		fill(written[i*r.blockSize:][:r.blockSize], writeMark, i, uint64(i+1))
	}
	for _, promise := range []struct {
		broken      string
		first       int // block
		before, now []byte
	}{
		{"older content after the heir's writes were acknowledged", 0, written, final[:half]},
		{"changes after the heir had opened the volume", blocks / 2,
			atOpen[min(half, len(atOpen)):], final[half:]},
		{"changes after the first owner was told that they had failed", blocks / 2,
			atTold[min(half, len(atTold)):], final[half:]},
	} {
		var differ []string
		for i := 0; i < len(promise.before); i += r.blockSize {
			before, now := promise.before[i:][:r.blockSize], promise.now[i:][:r.blockSize]
			if !slices.Equal(before, now) {
				differ = append(differ, fmt.Sprintf("block %d was %s, and is %s",
					promise.first+i/r.blockSize, describe(before), describe(now)))
			}
		}
		if n := len(differ); n > 0 {
			findings = append(findings, fmt.Sprintf("%s: %d blocks, the first ones: %s", promise.broken,
				n, strings.Join(differ[:min(n, 3)], "; ")))
		}
	}
	return findings
}

// carryOutEnd makes the first owner's session end.
func (p *place) carryOutEnd() {
	p.journal.add("the end: %v", p.round.end)
	switch p.round.end {
	case ownerKilled:
		p.first.Kill()
	case relayFrozen:
		p.relays[0].Stop()
	case relayKilled:
		p.relays[0].Kill()
		if p.round.heir == sameRelay || p.round.heir == itself {
			p.startRelay(0)
		}
	case targetFrozen:
		p.targets[0].Stop()
	case targetKilled:
		p.targets[0].Kill()
		p.awaitTarget(0)
	case targetKilledForGood:
		p.takeOverAfter(syscall.SIGKILL)
	case targetTerminatedForGood:
		p.takeOverAfter(syscall.SIGTERM)
	}
	p.journal.add("the end has been carried out")
}

// startHeir makes the heir open the volume, unless it has done so, and write.
func (p *place) startHeir() {
	switch {
	case p.round.end == ownerPreempted:
		p.heir.order(preemptCommand+p.first.await(opened).Detail, writeCommand)
	case p.round.heir == livingWriter:
		p.heir.order(writeCommand)
	default:
		p.heir.order(openCommand, writeCommand)
	}
}

// healLater ends the stall when it is time, and continues what is frozen.
func (p *place) healLater(toldFirst, acknowledgedByHeir <-chan struct{}) (healed chan struct{}) {
	healed = make(chan struct{})
	r, begun := p.round, p.begun
	go func() {
		defer close(healed)
		if r.end == relayFrozen {
			<-toldFirst
		}
		stall := r.stall
		if r.end == relayTimeout || r.end == ownerTimeout || r.end == targetFrozen ||
			r.end.isTakeOver() {
			stall += ioTimeout
		}
		if r.stall == untilAcknowledged {
			select {
			case <-acknowledgedByHeir:
			case <-time.After(time.Until(begun.Add(longestStall))):
			}
		} else {
			time.Sleep(time.Until(begun.Add(stall)))
		}
		if !r.thawLast {
			p.thaw()
		}
		for _, n := range p.stalled {
			n.heal(r.order, r.gap, r.random)
		}
		if r.thawLast {
			p.thaw()
		}
	}()
	return healed
}

func (p *place) thaw() {
	switch p.round.end {
	case relayFrozen:
		p.journal.add("the relay continues")
		p.relays[0].Continue()
	case targetFrozen:
		p.journal.add("the target continues")
		p.targets[0].Continue()
	}
}
