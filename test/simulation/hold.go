// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/zc-relay/zc-relay/pkg/network/networktest"
)

// hold is a stall of a network that loses nothing: what is in flight arrives when the stall is
// over, even if its sender has ended meanwhile. Nothing is acknowledged until then, so a kernel may
// give up a connection before.
type hold struct {
	relay, target netip.Addr
	scope         Scope
	flows         []*networktest.Flow // of the connections that are held, if only some are
	order         Order
	since, until  time.Time
	// waiting is since when the writer of each flow has waited for an acknowledgement.
	waiting map[*networktest.Flow]time.Time

	// before is what each flow had in flight when the latest fault began.
	before map[*networktest.Flow]int

	released bool
	waves    []*wave // what then arrives one after another
}

// wave is a part of what was held. The next one begins some steps after its end, so that whoever
// has received this one may have dealt with it.
type wave struct {
	arrivals []*arrival
	pause    int // in steps
	ended    int // the step; 0 before
}

// Scope is what a Hold fault holds of what a relay and a target send each other. The zero value is
// everything, connections made meanwhile included.
type Scope string

// The other scopes. All except ToTarget hold connections that exist when the fault begins.
const (
	ToTarget           Scope = "to-target" // everything in one direction
	DataConnections    Scope = "data"      // those of RDMA
	ControlConnections Scope = "control"   // the others
	OneConnection      Scope = "one"
)

// Order is in which order what was held arrives. The zero value is any order.
type Order string

// The other orders complete one part before the next begins.
const (
	DataFirst    Order = "data-first"
	ControlFirst Order = "control-first"
	OneByOne     Order = "one-by-one" // flow by flow
	// Split completes what is not data and was sent before the latest fault, then all data, and
	// then the rest.
	Split Order = "split"
)

var (
	scopes = []Scope{"", ToTarget, DataConnections, ControlConnections, OneConnection}
	orders = []Order{"", DataFirst, ControlFirst, OneByOne, Split}
)

// arrival is what is left of a flow's part in a wave, in the units of Flow.InFlight.
type arrival struct {
	flow *networktest.Flow
	left int
}

func (a *arrival) isOver() bool { return a.left <= 0 || a.flow.InFlight() == 0 }

// hold begins a hold. If it concerns one connection, number picks that.
func (n *internet) hold(h *hold, number int) {
	h.since, h.waiting = time.Now(), make(map[*networktest.Flow]time.Time)
	n.holds = append(n.holds, h)
	if h.isWhole() {
		return
	}
	for _, f := range n.network.Flows() {
		if h.connects(f.From().Addr(), f.To().Addr()) &&
			(h.scope == OneConnection || (h.scope == DataConnections) == isData(f)) {
			h.flows = append(h.flows, f)
		}
	}
	if h.scope == OneConnection && len(h.flows) > 0 {
		first := number % len(h.flows) &^ 1 // the flows of a connection are neighbours
		h.flows = h.flows[first : first+2]
	}
}

func isData(f *networktest.Flow) bool {
	return f.To().Port() == rdmaPort || f.From().Port() == rdmaPort
}

// isWhole reports whether the hold concerns all connections of two hosts.
func (h *hold) isWhole() bool { return h.scope == "" || h.scope == ToTarget }

// connects reports whether two addresses are those of the hold.
func (h *hold) connects(a, b netip.Addr) bool { return pair(a, b) == pair(h.relay, h.target) }

// covers reports whether the hold concerns the connection of a flow.
func (h *hold) covers(f *networktest.Flow) bool {
	if h.isWhole() {
		return h.connects(f.From().Addr(), f.To().Addr())
	}
	return slices.Contains(h.flows, f)
}

// stops reports whether a flow delivers nothing now.
func (h *hold) stops(f *networktest.Flow) bool {
	if !h.released {
		return h.covers(f) && (h.scope != ToTarget || f.To().Addr() == h.target)
	}
	next, present := h.next(f)
	return next != nil && !present
}

// next returns what of a flow is yet to arrive in the first wave that has some, nil if none has,
// and whether that wave is the present one.
func (h *hold) next(f *networktest.Flow) (next *arrival, present bool) {
	for i, wave := range h.waves {
		for _, a := range wave.arrivals {
			if a.flow == f && !a.isOver() {
				return a, i == 0
			}
		}
	}
	return nil, false
}

func (w *wave) isOver() bool {
	return !slices.ContainsFunc(w.arrivals, func(a *arrival) bool { return !a.isOver() })
}

// noteFault is called when a fault begins.
func (n *internet) noteFault() {
	for _, h := range n.holds {
		h.before = make(map[*networktest.Flow]int)
		for _, f := range n.moving {
			h.before[f] = f.InFlight()
		}
	}
}

// advanceHolds lets the next waves begin that are due in a step.
func (n *internet) advanceHolds(step int) {
	for _, h := range n.holds {
		for len(h.waves) > 0 && h.waves[0].isOver() {
			if h.waves[0].ended == 0 {
				h.waves[0].ended = step
			}
			if step < h.waves[0].ended+h.waves[0].pause {
				break
			}
			h.waves = h.waves[1:]
		}
	}
}

// isHeld reports whether a flow delivers nothing because of a hold.
func (n *internet) isHeld(f *networktest.Flow) bool {
	return slices.ContainsFunc(n.holds, func(h *hold) bool { return h.stops(f) })
}

// delaysDial reports whether an attempt to connect has to wait for a hold: until everything that
// was held has arrived, because a kernel repeats an attempt at growing intervals.
func (n *internet) delaysDial(d *dial) bool {
	return slices.ContainsFunc(n.holds, func(h *hold) bool {
		return h.isWhole() && h.connects(d.from.Addr(), d.to.Addr())
	})
}

// noteArrival is called when count of what a flow has in flight is about to arrive.
func (n *internet) noteArrival(f *networktest.Flow, count int) {
	for _, h := range n.holds {
		if a, _ := h.next(f); a != nil {
			a.left -= count
		}
	}
}

// limitArrival returns how much of what a flow has in flight may arrive at once, up to a limit:
// waves do not mix.
func (n *internet) limitArrival(f *networktest.Flow, limit int) int {
	for _, h := range n.holds {
		if a, _ := h.next(f); a != nil {
			limit = min(limit, a.left)
		}
	}
	return limit
}

// expireHolds releases what was held for long enough, and gives up the connections whose kernels
// have waited for too long.
func (n *internet) expireHolds(w *world) {
	now := time.Now()
	n.holds = slices.DeleteFunc(n.holds, func(h *hold) bool {
		if !h.released && now.Before(h.until) {
			n.giveUp(h, now)
			return false
		}
		if !h.released {
			h.released = true
			for _, arrivals := range n.wavesOf(h, w.random) {
				pause := w.random.IntN(pick(w.random, 1, longestWavePause, longestWavePause))
				h.waves = append(h.waves, &wave{arrivals: arrivals, pause: pause})
			}
			w.trace("the network holds nothing more of what %v and %v send each other: %d waves",
				h.relay, h.target, len(h.waves))
		}
		return len(h.waves) == 0 || now.Sub(h.until) > wavePatience
	})
}

// idlePatience is how much longer than lossTimeout an end takes to give up that waits for nothing
// but the answers to its probes.
const idlePatience = 2 * time.Second

// giveUp gives up the held connections of which nothing has been acknowledged for too long, each
// end by itself.
func (n *internet) giveUp(h *hold, now time.Time) {
	for _, f := range n.network.Flows() {
		if !h.covers(f) {
			continue
		}
		since, waits := h.waiting[f]
		if !waits && f.InFlight() > 0 {
			since, waits = now, true
			h.waiting[f] = now
		}
		if !waits {
			since = h.since.Add(idlePatience)
		}
		if now.Sub(since) > lossTimeout {
			f.GiveUp()
		}
	}
}

// wavePatience is how long the waves of a hold may take. Those of two holds may wait for each
// other, or for a process that is frozen.
const wavePatience = time.Second

// longestWavePause bounds the steps between two waves. It is enough for a target to submit what has
// arrived.
const longestWavePause = 200

// wavesOf returns the waves in which what was held arrives.
func (n *internet) wavesOf(h *hold, random *rand.Rand) [][]*arrival {
	var data, control []*arrival
	for _, f := range n.moving {
		switch a := (&arrival{f, f.InFlight()}); {
		case !h.covers(f) || a.isOver():
		case isData(f):
			data = append(data, a)
		default:
			control = append(control, a)
		}
	}
	switch h.order {
	case DataFirst:
		return [][]*arrival{data, control}
	case ControlFirst:
		return [][]*arrival{control, data}
	case OneByOne:
		var waves [][]*arrival
		for _, a := range slices.Concat(data, control) {
			waves = append(waves, []*arrival{a})
		}
		random.Shuffle(len(waves), func(i, j int) { waves[i], waves[j] = waves[j], waves[i] })
		return waves
	case Split:
		var first, rest []*arrival
		for _, a := range control {
			n := min(h.before[a.flow], a.left)
			first = append(first, &arrival{a.flow, n})
			rest = append(rest, &arrival{a.flow, a.left - n})
		}
		return [][]*arrival{first, data, rest}
	}
	return nil
}
