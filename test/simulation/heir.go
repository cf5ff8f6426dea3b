// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/zc-relay/zc-relay/pkg/client"
)

// estate is a range of blocks whose owners follow one another. Something ends an owner while its
// requests are in flight. Its heir opens the volume as soon as it can, reads all blocks, writes all
// of them, and goes on as any application does.
type estate struct {
	world  *world
	disk   *disk
	first  int // block
	owners []*application
}

// Exclusivity says who keeps the owners of an estate apart. The zero value is nobody: the volume is
// shared.
type Exclusivity string

// The other values.
const (
	ByClient Exclusivity = "client" // owners open the volume exclusively
	ByTarget Exclusivity = "target" // the volume has one writer at a time
)

// ownership is what an application is besides if it owns an estate.
type ownership struct {
	estate *estate
	relay  int // number of the one that the owner uses
	former *application
	begin  chan struct{} // closed when the owner may open the volume
	begun  bool
	// recovered counts the blocks that the owner has begun to read, one after another, and renewed
	// those that it has begun to write afterwards.
	recovered, renewed int
	leaves             bool // it makes no more requests
	preempts           bool // it takes the volume from its living predecessor
	// leftOpen holds the requests that were outstanding when the owner closed its volume.
	leftOpen []*operation
}

// addEstateDisks adds the disks of the plan's estates.
func (w *world) addEstateDisks() {
	for i := range w.plan.Heirs {
		if i == 0 || !w.plan.OneVolume {
			w.addDisk(fmt.Sprintf("estate%d", i), i%w.plan.Targets, uint64(10+i))
		}
	}
}

// estateDisks returns the disks of the estates.
func (w *world) estateDisks() []*disk {
	disks := w.disks[w.plan.Targets:]
	if w.gateway != nil {
		disks = disks[:len(disks)-1] // the last one is the gateway's
	}
	return disks
}

// addEstates adds the plan's estates with their first owners.
func (w *world) addEstates() {
	disks := w.estateDisks()
	for i := range w.plan.Heirs {
		e := &estate{world: w, disk: disks[i%len(disks)]}
		e.first = i / len(disks) * 4 * w.plan.Buffer
		w.estates = append(w.estates, e)
		e.addOwner(i % len(w.relays))
	}
}

// addOwner adds an owner that uses a relay. It begins in a later step.
func (e *estate) addOwner(relay int) {
	w := e.world
	a := w.newApplication("owner", relay, e.disk, e.disk.name, w.plan.Requests)
	a.first = e.first
	a.ownership = &ownership{estate: e, relay: relay, begin: make(chan struct{})}
	if w.plan.Blocking && len(e.owners)%2 == 0 {
		a.blocking, a.queues = true, 0
	}
	if len(e.owners) > 0 {
		a.former = e.present()
		if a.former.isWaiting() {
			a.former.giveUp()
		}
		a.blocks = a.former.bequeath()
	}
	e.owners = append(e.owners, a)
	a.process.run(func(ctx context.Context) error {
		select {
		case <-a.begin:
			return a.run(ctx)
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

// addHeir adds an owner that uses another relay than the present one, if there is another.
func (e *estate) addHeir() { e.addOwner((e.present().relay + 1) % len(e.world.relays)) }

// present returns the latest owner.
func (e *estate) present() *application { return e.owners[len(e.owners)-1] }

// bequeath returns what the blocks may hold when an heir comes: nobody knows the outcome of what is
// outstanding.
func (a *application) bequeath() []block {
	blocks := make([]block, len(a.blocks))
	for i, b := range a.blocks {
		blocks[i].live, blocks[i].durable = slices.Clone(b.live), slices.Clone(b.durable)
	}
	for _, o := range a.operation {
		if !o.request.Type.Operation().Changes() {
			continue
		}
		for i := range o.count {
			b := &blocks[o.first+i]
			b.live, b.durable = include(b.live, o.stamp), include(b.durable, o.stamp)
		}
	}
	return blocks
}

// changesInFlight returns how many changes the application has outstanding.
func (a *application) changesInFlight() (count int) {
	for _, o := range a.operation {
		if o.request.Type.Operation().Changes() {
			count++
		}
	}
	return count
}

// configure adds to the configuration of an application what an owner needs.
func (o *ownership) configure(c *client.Config, blocking bool) {
	plan := o.estate.world.plan
	c.Exclusive = plan.Exclusive == ByClient
	if blocking {
		c.Queues, c.SyncDepth = 0, max(1, plan.Depth-1) // fewer slots than callers
	}
	if plan.Mortal {
		c.Reconnect = nil
	}
	if o.preempts {
		c.Preempt = o.former.volume.Info().OwnHolderID
	}
}

// nextType returns what the application requests next: an owner reads all blocks first, and then
// writes all of them.
func (a *application) nextType(random *rand.Rand) client.RequestType {
	switch {
	case a.ownership == nil || a.hasTakenOver():
		return requestMix[random.IntN(len(requestMix))]
	case a.recovered < len(a.blocks):
		return client.Read
	}
	return client.Write
}

// nextBlock returns the block at which an owner goes on with that, or the number of blocks.
func (a *application) nextBlock() int {
	switch {
	case a.ownership == nil:
		return len(a.blocks)
	case a.recovered < len(a.blocks):
		return a.recovered
	}
	return a.renewed
}

// count counts a request that was submitted.
func (a *application) count(o *operation) {
	switch {
	case a.ownership == nil || a.hasTakenOver():
		a.left--
	case a.recovered < len(a.blocks):
		a.recovered += o.count
	default:
		a.renewed += o.count
	}
}

// hasTakenOver reports whether the application, if it owns an estate, has written all of it.
func (a *application) hasTakenOver() bool {
	return a.ownership == nil || a.renewed == len(a.blocks)
}

// isPassing reports whether it is no fault of the world if the application's volume fails.
func (a *application) isPassing() bool {
	return a.ownership != nil && (a.leaves || a.world.plan.Mortal || a != a.estate.present())
}

// endOwner ends the present owner of an estate, as a fault says, and adds its heir.
func (w *world) endOwner(f *Fault) {
	if len(w.estates) > 0 {
		w.estates[f.Subject%len(w.estates)].end(f)
	}
}

func (e *estate) end(f *Fault) {
	w, a := e.world, e.present()
	relay := f.Relay % len(w.relays)
	preempts := false
	switch {
	case a.process.dead || a.process.exited.Load():
	case f.Kind == PreemptOwner && w.plan.Exclusive != "" && a.volume != nil && !a.repeats():
		preempts = true
	case f.Kind == OwnerLeaves && a.volume != nil:
		a.leave()
	case (f.Kind == EndOwner || f.Kind == FreezeOwner) && a.volume != nil && !a.repeats() &&
		w.endSessionsOf(a, f.Subject/len(w.estates)%2 == 1):
		a.leaves = true
		if f.Kind == FreezeOwner {
			w.freeze(a.process, time.Now().Add(f.For))
		}
	default:
		w.kill(a.process)
	}
	e.addOwner(relay)
	e.present().preempts = preempts
}

// isWaiting reports whether an owner preempts another one, and has not opened the volume yet.
func (a *application) isWaiting() bool { return a.preempts && a.volume == nil }

// giveUp ends the predecessor of an owner that has ended before it could preempt it.
func (a *application) giveUp() {
	if p := a.former.process; !p.dead && !p.exited.Load() {
		a.world.kill(p)
	}
	a.blocks = a.former.bequeath()
}

// repeats reports whether the client repeats by itself what a session has left unfinished.
func (a *application) repeats() bool { return a.blocking && !a.world.plan.Mortal }

// leave makes an owner close its volume.
func (a *application) leave() {
	a.leaves, a.closing, a.finished = true, true, true
	a.leftOpen = slices.Collect(maps.Values(a.operation))
	a.process.terminate()
}

// endSessionsOf makes an administrator of the relay or the target end the sessions of an owner. It
// reports whether there were some.
func (w *world) endSessionsOf(a *application, atTarget bool) bool {
	var ends []func()
	target, relay := w.targets[a.disk.target], w.relays[a.relay]
	if t := target.target; atTarget && t != nil && !target.dead && !target.frozen {
		for _, s := range t.OpenSessions() {
			if s.Volume == a.disk.name {
				ends = append(ends, func() { _ = t.EndSession(s.ID) })
			}
		}
	}
	if r := relay.relay; !atTarget && r != nil && !relay.dead && !relay.frozen {
		for _, c := range r.Channels() {
			for _, s := range c.OpenSessions {
				if c.Name == a.channel {
					ends = append(ends, func() { _ = r.EndSession(s.ID) })
				}
			}
		}
	}
	for _, end := range ends {
		end()
	}
	return len(ends) > 0
}

// passOn lets owners begin whose predecessors have ended, and gives heirs to owners that have ended
// by themselves. It reports whether it has done something.
func (w *world) passOn() (changed bool) {
	if w.ending {
		return false
	}
	if w.gateway != nil {
		changed = w.gateway.passOn()
	}
	for _, e := range w.estates {
		a := e.present()
		switch {
		case a.process.dead || a.process.exited.Load() || a.failure != nil && a.finished:
			if !a.process.dead && !a.process.exited.Load() {
				a.leave()
			}
			e.addHeir()
			changed = true
		case !a.begun && a.mayBegin():
			w.trace("%s begins", a.name)
			a.begun, changed = true, true
			close(a.begin)
		}
		for _, former := range e.owners {
			if former.leaves && former.finished && !former.closing && !former.process.dead {
				former.leave()
				changed = true
			}
		}
	}
	return changed
}

// mayBegin reports whether whoever starts the heirs of an owner knows that it has ended.
func (a *application) mayBegin() bool {
	if a.former == nil {
		return true
	}
	p := a.former.process
	if p.dead && !a.former.begun {
		return a.former.mayBegin() // what it has waited for may not be over
	}
	if p.dead {
		return a.world.plan.Prompt || !a.world.bus.hasSent(p)
	}
	return !a.former.closing || p.exited.Load()
}

// isSettled reports whether nothing more is about to happen to the estate by itself.
func (e *estate) isSettled() bool {
	a := e.present()
	return a.begun && !a.process.dead && a.failure == nil
}

// handOver lets an heir follow each owner in an orderly way.
func (w *world) handOver() {
	for _, e := range w.estates {
		if w.violation == nil {
			e.end(&Fault{Kind: OwnerLeaves, Relay: e.present().relay + 1})
		}
	}
	w.await("the last heirs to be served", w.allFinished)
}

// checkEnd checks a change of a block that is about to take effect against the rule of ends: what
// an owner has in flight is over before the owner is told that it has failed, and before an heir of
// the owner has opened the volume. Only a device that hung may break the former.
func (w *world) checkEnd(d *disk, index int, stamp uint64) {
	late := "nobody has such a change in flight"
	for _, a := range w.applications {
		if !a.has(d, index) {
			continue
		}
		for _, o := range a.changes(index, stamp) {
			switch heir := a.openHeir(); {
			case heir != nil:
				late = fmt.Sprintf("by %s of %s, although %s has opened the volume", o, a.name,
					heir.name)
			case o.completed != 0 && !a.hasLeftOpen(o) && !w.mayHang(d):
				late = fmt.Sprintf("by %s of %s, whose result was delivered before", o, a.name)
			default:
				return
			}
		}
	}
	if stamp == 0 && w.mayHang(d) {
		return // the change may be one whose result was delivered before
	}
	w.violate("late ghost: block %d of %s is about to be written with stamp %d: %s", index, d.name,
		stamp, late)
}

// mayHang reports whether a disk has kept what it carries out while nobody could wait for it: a
// relay waits for a disk that stalls as long as it can reach the target.
func (w *world) mayHang(d *disk) bool {
	return d.isHung() && slices.ContainsFunc(w.plan.Faults, func(f Fault) bool {
		return f.For > longestStall || !slices.Contains(harmless, f.Kind)
	})
}

// longestStall is how long clients wait at least for a relay that waits for a disk.
const longestStall = 5 * time.Second

// harmless are the kinds of faults that leave a relay and a target in touch.
var harmless = []FaultKind{StallDisk, FailDisk, KillInitiator, NewInitiator, DeafRelay, KillOwner,
	OwnerLeaves, EndOwner, FreezeOwner, PreemptOwner}

// has reports whether a block is one of the application's.
func (a *application) has(d *disk, index int) bool {
	return a.disk == d && index >= a.first && index < a.first+len(a.blocks)
}

// changes returns the application's requests that may write a stamp to a block: the one with the
// stamp or, as zeroes have none, those outstanding.
func (a *application) changes(index int, stamp uint64) []*operation {
	if o := a.stamps[stamp]; stamp != 0 {
		if o == nil {
			return nil
		}
		return []*operation{o}
	}
	outstanding := slices.Collect(maps.Values(a.operation))
	if a.ownership != nil {
		outstanding = append(outstanding, a.leftOpen...)
	}
	return slices.DeleteFunc(outstanding, func(o *operation) bool {
		return o.stamp != 0 || !o.request.Type.Operation().Changes() || index < a.first+o.first ||
			index >= a.first+o.first+o.count
	})
}

// hasLeftOpen reports whether the application has closed its volume while an operation was
// outstanding. Then it has given the operation up, rather than been told that it has failed.
func (a *application) hasLeftOpen(o *operation) bool {
	return a.ownership != nil && slices.Contains(a.leftOpen, o)
}

// openHeir returns a later owner of the same estate who has opened the volume, nil if none has.
func (a *application) openHeir() *application {
	if a.ownership == nil {
		return nil
	}
	owners := a.estate.owners
	for _, heir := range owners[slices.Index(owners, a)+1:] {
		if heir.volume != nil {
			return heir
		}
	}
	return nil
}

// checkDisk checks what the disk holds once nothing of an application is in flight any more.
func (a *application) checkDisk() {
	for i, b := range a.blocks {
		index := a.first + i
		stamp, err := identify(a.disk.current[index*blockSize:][:blockSize], index)
		if err != nil || !slices.Contains(b.live, stamp) {
			a.world.violate("%s: block %d of %s holds stamp %d, %v, but can only hold %v", a.name,
				index, a.disk.name, stamp, err, b.live)
			return
		}
	}
}
