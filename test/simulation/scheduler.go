// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"net/netip"
	"slices"
	"syscall"
	"testing/synctest"
	"time"

	"github.com/zc-relay/zc-relay/pkg/network/networktest"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/target"
)

// Bounds of a step of time.
const (
	minPause = 20 * time.Microsecond
	maxPause = 100 * time.Millisecond
)

// choice is something that can happen in a step.
type choice struct {
	kind  choiceKind
	index int
	other int
}

type choiceKind uint8

const (
	takeTurn        choiceKind = iota // index: process, other: thread
	deliverStream                     // index: flow
	deliverPacket                     // index: delivery
	connectStream                     // index: attempt
	completeRequest                   // index: disk, other: 1 for a target's scratch disk
	finishCopy                        // index: copy, other: relay
	runApplication                    // index: application
	runConnection                     // index: connection of the gateway
	scribble                          // index: hostile host
)

// step lets one thing happen, and returns when all goroutines wait again. The scheduler looks at
// the world only while they do.
func (w *world) step() {
	defer synctest.Wait()
	w.steps++
	if w.steps%stepsPerCheck == 0 {
		w.checkBounds()
	}
	w.internet.advanceHolds(w.steps)
	w.wake()
	if w.expire(); w.passOn() {
		return
	}
	choices := w.choices()
	if len(choices) == 0 || w.random.IntN(400) == 0 {
		w.passTime()
		return
	}
	w.take(choices[w.random.IntN(len(choices))])
}

// take lets what was chosen happen.
func (w *world) take(c choice) {
	switch c.kind {
	case takeTurn:
		p := w.alive[c.index]
		t := p.threads[c.other]
		p.threads = slices.Delete(p.threads, c.other, c.other+1)
		if tracing {
			w.trace("%s takes a turn", p.name)
		}
		w.publish()
		t.resume <- struct{}{}
	case deliverStream:
		w.deliver(w.internet.moving[c.index])
	case deliverPacket:
		d := w.bus.inFlight[c.index]
		if tracing {
			w.trace("%s to %s: a packet arrives", w.bus.process(d.From).name,
				w.bus.process(d.To).name)
		}
		w.publish()
		w.bus.deliver(d)
		w.productive.Store(true)
	case connectStream:
		d := w.internet.dials[c.index]
		w.trace("%v connects to %v", d.from, d.to)
		w.publish()
		w.internet.allow(d)
		w.productive.Store(true)
	case completeRequest:
		d := w.disks[c.index]
		if c.other == 1 {
			d = w.scratch[c.index]
		}
		n := d.choose(w.random)
		w.publish()
		r := d.complete(n)
		if tracing {
			w.trace("%s completes %v %d+%d: %v", d.name, r.Operation, r.Offset, r.Length, r.Err)
		}
		w.targets[d.target].productive.Store(true)
	case finishCopy:
		w.publish()
		w.relays[c.other].finishCopy(c.index)
		w.relays[c.other].productive.Store(true)
	case scribble:
		w.publish()
		w.hostile[c.index].scribble()
		w.relays[0].productive.Store(true)
	case runConnection:
		c := w.gateway.connections[c.index]
		w.publish()
		if c.turn() == 0 {
			c.idle = true
		} else {
			c.process.productive.Store(true)
		}
	case runApplication:
		a := w.applications[c.index]
		w.publish()
		if a.turn() == 0 {
			a.idle = true
		} else {
			a.process.productive.Store(true)
		}
	}
}

// passTime lets time pass. While nothing else happens, the pauses get longer.
func (w *world) passTime() {
	pause := w.pause
	w.pause, w.timePassed = min(pause<<(1+w.random.IntN(4)), maxPause), true
	if tracing {
		w.trace("time passes: %v", pause)
	}
	w.publish()
	time.Sleep(pause)
}

// publish orders what the scheduler has read and written before everything that goroutines do from
// now on. They take one of these locks before they touch anything of the world. What they have done
// is ordered before the scheduler by synctest.Wait.
func (w *world) publish() {
	w.locks = append(w.locks[:0], &w.mu, &w.internet.mu, &w.bus.mu)
	for _, d := range slices.Concat(w.disks, w.scratch) {
		w.locks = append(w.locks, &d.mu)
	}
	for _, lock := range w.locks {
		lock.Lock()
		lock.Unlock() //nolint:staticcheck // an empty critical section orders, too
	}
}

// deliver lets some of what is in flight arrive, perhaps with an inverted bit.
func (w *world) deliver(f *networktest.Flow) {
	limit, flip := 1+w.random.IntN(window), -1
	if w.random.IntN(4) == 0 {
		limit = 1 + w.random.IntN(64)
	}
	limit = w.internet.limitArrival(f, limit)
	if w.flips > 0 && w.internet.carriesFrames(f) && w.random.IntN(4) == 0 {
		w.flips--
		first, length := 0, min(limit, f.InFlight())
		switch w.random.IntN(4) {
		case 0:
			length = min(length, frameHeaderBytes)
		case 1:
			if length >= taggedOffset+taggedOffsetBytes {
				first, length = taggedOffset, taggedOffsetBytes
			}
		}
		flip = 8*first + w.random.IntN(8*length)
	}
	if tracing {
		w.trace("%s delivers up to %d of %d bytes, flips %d", describe(f), limit, f.InFlight(), flip)
	}
	w.publish()
	w.internet.record(f, limit)
	w.internet.deliver(f, limit, flip)
	for _, host := range []*networktest.Host{f.Writer(), f.Reader()} {
		w.internet.processes[host].productive.Store(true)
	}
}

// wake gives another turn to every thread and application that may have something to do since the
// last step. A turn that finds nothing to do changes nothing, so no schedule is missed without it.
// The next pause wakes everybody.
func (w *world) wake() {
	everybody := w.productive.Swap(false)
	if everybody {
		w.pause = minPause
	}
	everybody = everybody || w.timePassed
	w.timePassed = false
	for _, p := range w.alive {
		if p.productive.Swap(false) {
			w.pause = minPause
			for _, other := range w.alive {
				other.awake = other.awake || other == p || p.sharesMemory(other)
			}
		}
	}
	for _, p := range w.alive {
		if everybody || p.awake {
			for _, t := range p.threads {
				t.idle = false
			}
		}
	}
	for _, a := range w.applications {
		a.idle = a.idle && !everybody && !a.process.awake
	}
	if w.gateway != nil {
		for _, c := range w.gateway.connections {
			c.idle = c.idle && !everybody && !c.process.awake
		}
	}
	for _, p := range w.alive {
		p.awake = false
	}
}

// choices returns what can happen next.
func (w *world) choices() []choice {
	choices := w.choiceBuffer[:0]
	for i, p := range w.alive {
		if p.frozen {
			continue
		}
		for j, t := range p.threads {
			if !t.idle {
				choices = append(choices, choice{takeTurn, i, j})
			}
		}
	}
	for i, f := range w.internet.moving {
		if w.internet.deliverable(f) {
			choices = append(choices, choice{deliverStream, i, 0})
		}
	}
	for i, d := range w.bus.inFlight {
		if w.bus.deliverable(d) {
			choices = append(choices, choice{deliverPacket, i, 0})
		}
	}
	for i, d := range w.internet.dials {
		if !w.relayAt(d.from.Addr()).frozen && !w.internet.isCut(d.from.Addr(), d.to.Addr()) &&
			!w.internet.delaysDial(d) {
			choices = append(choices, choice{connectStream, i, 0})
		}
	}
	for i, d := range w.disks {
		if d.hasPending() && !d.isStalled() {
			choices = append(choices, choice{completeRequest, i, 0})
		}
		if i < len(w.scratch) && w.scratch[i].hasPending() {
			choices = append(choices, choice{completeRequest, i, 1})
		}
	}
	for i, p := range w.relays {
		if n := len(p.copies); n > 0 && !p.dead {
			choices = append(choices, choice{finishCopy, w.random.IntN(n), i})
		}
	}
	for i, a := range w.applications {
		if !a.idle && !a.finished && a.volume != nil && !a.process.dead && !a.process.frozen {
			choices = append(choices, choice{runApplication, i, 0})
		}
	}
	if w.gateway != nil {
		for i, c := range w.gateway.connections {
			if c.mayTurn() {
				choices = append(choices, choice{runConnection, i, 0})
			}
		}
	}
	for i, h := range w.hostile {
		// Once all is calm, it leaves the others time to recover.
		if len(h.shared) > 0 && !h.process.frozen && len(choices) > 0 &&
			(!w.calmed || w.random.IntN(32) == 0) {
			choices = append(choices, choice{scribble, i, 0})
		}
	}
	w.choiceBuffer = choices
	return choices
}

// expire ends what lasts for a limited time, and returns when all goroutines wait again.
func (w *world) expire() {
	now := time.Now()
	if now.Sub(w.expiredAt) < time.Millisecond {
		return
	}
	w.expiredAt = now
	w.internet.expire()
	w.internet.expireHolds(w)
	w.bus.endLoans(false)
	for _, p := range slices.Clone(w.alive) {
		if p.frozen && !now.Before(p.frozenUntil) {
			w.trace("%s continues", p.name)
			p.thaw()
			w.productive.Store(true)
			w.checkAllPoison()
		}
		isDaemon := w.isRelay(p) || slices.Contains(w.targets, p)
		if isDaemon && p.exited.Load() && !p.dead && !w.ending {
			w.trace("%s has exited and starts again", p.name)
			w.bury(p)
			p.restart()
		}
	}
	for pair, until := range w.heals {
		if !now.Before(until) {
			w.trace("the network between %v and %v heals", pair[0], pair[1])
			delete(w.internet.cut, pair)
			delete(w.heals, pair)
		}
	}
	for i := 0; i < len(w.restarts); i++ {
		if r := w.restarts[i]; !now.Before(r.at) {
			w.restarts = slices.Delete(w.restarts, i, i+1)
			i--
			r.start()
		}
	}
	synctest.Wait()
}

func (w *world) checkAllPoison() {
	for _, a := range w.applications {
		if a.volume == nil || a.process.dead || a.process.exited.Load() || a.closing {
			continue
		}
		for slot := range a.slots {
			a.checkPoison(slot)
		}
	}
}

// clientOf returns the client that a fault concerns, nil if there is none.
func (w *world) clientOf(f *Fault) *process {
	clients := w.clients()
	if len(clients) == 0 {
		return nil
	}
	return clients[f.Subject%len(clients)]
}

// begin begins a fault.
func (w *world) begin(f *Fault) {
	w.trace("FAULT %s %d for %v", f.Kind, f.Subject, f.For)
	w.internet.noteFault()
	until := time.Now().Add(f.For)
	t := f.Subject % len(w.targets)
	target, relay := w.targets[t], w.relays[f.Relay%len(w.relays)]
	client := w.clientOf(f)
	w.productive.Store(true)
	if w.gateway != nil {
		w.gateway.begin(f, until)
	}
	switch f.Kind {
	case KillRelay:
		w.killAndRestart(relay, until)
	case KillTarget:
		w.crash(t, false, until)
	case PowerLoss:
		w.crash(t, true, until)
	case KillInitiator:
		if !client.dead && !client.exited.Load() {
			w.kill(client)
		}
	case StopRelay:
		relay.terminate()
	case StopTarget:
		target.terminate()
	case FreezeRelay:
		w.freeze(relay, until)
	case DeafRelay:
		relay.deafUntil = until
	case FreezeTarget:
		w.freeze(target, until)
	case FreezeClient:
		w.freeze(client, until)
	case CutNetwork:
		w.internet.cut[pair(relay.address, target.address)] = time.Now()
		w.heals[pair(relay.address, target.address)] = until
	case KillOwner, OwnerLeaves, EndOwner, FreezeOwner, PreemptOwner:
		w.endOwner(f)
	case Hold:
		w.internet.hold(&hold{relay: relay.address, target: target.address, scope: f.Scope,
			order: f.Order, until: until}, f.Subject/len(w.targets))
	case ResetStream:
		if flows := w.internet.network.Flows(); len(flows) > 0 {
			w.internet.fail(flows[f.Subject%len(flows)], syscall.ECONNRESET)
		}
	case HalfClose:
		if flows := w.internet.network.Flows(); len(flows) > 0 {
			flows[f.Subject%len(flows)].CloseWrite()
		}
	case FlipBit:
		w.flips += 1 + f.Subject%8
	case FailDisk, StallDisk:
		w.breakDisks(t, f)
	case Reconfigure:
		w.reconfigure(f.Relay%len(w.relays), t, f.Subject/len(w.targets), f.For)
	case WithdrawVolume:
		w.withdraw(target, f.For)
	case EndSessions:
		w.endSessions(relay, target, f.Subject)
	case HostileHost:
		w.admitHostileHost()
	case HostileNetwork:
		w.admitHostileNetwork(target.address, uint64(f.Step))
	case NewInitiator:
		if blocks := 4 * w.plan.Buffer; w.usedBlocks[t]+(1+laterNewcomers)*blocks <= blocksPerDisk {
			w.startInitiator(t, newcomerRequests)
		}
	}
}

// breakDisks makes requests to a target's disks fail or stall.
func (w *world) breakDisks(target int, f *Fault) {
	for _, d := range w.disksOf(target) {
		if f.Kind == FailDisk {
			d.errors += 1 + f.Subject%8
		} else {
			d.stalled = time.Now().Add(f.For)
		}
	}
}

func (w *world) freeze(p *process, until time.Time) {
	if !p.dead {
		p.frozen, p.frozenUntil = true, until
	}
}

// killAndRestart kills a process and starts the program again later.
func (w *world) killAndRestart(p *process, at time.Time) {
	if p.dead || p.exited.Load() {
		return
	}
	w.kill(p)
	w.bury(p)
	w.restarts = append(w.restarts, restart{at, p.restart})
}

// crash kills a target and, with the power, what was not durable.
func (w *world) crash(t int, powerLoss bool, at time.Time) {
	p := w.targets[t]
	if p.dead || p.exited.Load() {
		return
	}
	p.crashDisks(powerLoss)
	if powerLoss {
		for _, a := range w.applications {
			if a.disk.target == t {
				a.crashed()
			}
		}
		for _, c := range w.callers {
			if c.disk.target == t {
				c.crashed()
			}
		}
		if g := w.gateway; g != nil && g.disk.target == t {
			g.history.crashed()
		}
	}
	w.killAndRestart(p, at)
}

// reconfigure changes something about channel t in the configuration of relay k, and changes it
// back, at once or after a pause.
func (w *world) reconfigure(k, t, variant int, pause time.Duration) {
	p := w.relays[k]
	r := p.relay
	if r == nil || p.dead || p.frozen {
		return
	}
	settings := w.relaySettings(k)
	changed := settings
	changed.Channels = slices.Clone(settings.Channels)
	channel := &changed.Channels[t]
	switch variant %= 5; variant {
	case 0, 1:
		changed.Channels = slices.Delete(changed.Channels, t, t+1)
		if variant == 0 {
			pause = 0
		}
	case 2: // nobody listens there
		channel.Targets = []netip.AddrPort{netip.AddrPortFrom(targetAddress(9), controlPort)}
	case 3:
		channel.QoS.Channel.IOPS, channel.QoS.Session.IOPS = 500, 300
		channel.QoS.Session.Bandwidth = 1 << 20
	case 4:
		channel.IOTimeout = retry.Within(w.plan.RelayIOTimeout / 2)
		channel.Isolation = relay.Staged
		if w.plan.Staged {
			channel.Isolation = relay.Direct
		}
	}
	w.running.Go(func() {
		_ = r.Reconfigure(context.Background(), changed)
		time.Sleep(pause)
		_ = r.Reconfigure(context.Background(), settings)
	})
}

// withdraw removes the volume from a target's configuration, and adds it again later.
func (w *world) withdraw(p *process, pause time.Duration) {
	if p.target == nil || p.dead || p.frozen {
		return
	}
	w.running.Go(func() {
		ctx := context.Background()
		if p.target.Withdraw(ctx, volumeName, retry.Bound{}) != nil || p.disk.Close(ctx) != nil {
			return // it has been withdrawn already, or the target has ended
		}
		time.Sleep(pause)
		w.mu.Lock()
		defer w.mu.Unlock()
		if p.dead || p.exited.Load() || p.isEnding {
			return
		}
		p.disk = p.disk.disk.open()
		_ = p.target.Offer(volumeName, target.Offer{Volume: p.disk})
	})
}

// endSessions ends a number of sessions of a relay and of a target.
func (w *world) endSessions(relay, target *process, number int) {
	var ends []func()
	if r := relay.relay; r != nil && !relay.dead && !relay.frozen {
		for _, c := range r.Channels() {
			for _, s := range c.OpenSessions {
				ends = append(ends, func() { _ = r.EndSession(s.ID) })
			}
		}
	}
	if t := target.target; t != nil && !target.dead && !target.frozen {
		for _, s := range t.OpenSessions() {
			ends = append(ends, func() { _ = t.EndSession(s.ID) })
		}
	}
	for i, end := range ends {
		if number>>(i%6)&1 == 1 {
			end()
		}
	}
}
