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

	released bool
	waves    [][]*arrival // what then arrives one after another
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
)

var (
	scopes = []Scope{"", ToTarget, DataConnections, ControlConnections, OneConnection}
	orders = []Order{"", DataFirst, ControlFirst, OneByOne}
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
	for _, wave := range h.waves {
		if slices.ContainsFunc(wave, func(a *arrival) bool { return a.flow == f }) {
			return false
		}
		if !isOver(wave) {
			break
		}
	}
	return slices.ContainsFunc(h.waves, func(wave []*arrival) bool {
		return slices.ContainsFunc(wave, func(a *arrival) bool { return a.flow == f })
	})
}

func isOver(wave []*arrival) bool {
	return !slices.ContainsFunc(wave, func(a *arrival) bool { return !a.isOver() })
}

// isHeld reports whether a flow delivers nothing because of a hold.
func (n *internet) isHeld(f *networktest.Flow) bool {
	return slices.ContainsFunc(n.holds, func(h *hold) bool { return h.stops(f) })
}

// delaysDial reports whether an attempt to connect has to wait for the end of a hold.
func (n *internet) delaysDial(d *dial) bool {
	return slices.ContainsFunc(n.holds, func(h *hold) bool {
		return h.isWhole() && !h.released && h.connects(d.from.Addr(), d.to.Addr())
	})
}

// noteArrival is called when count of what a flow has in flight is about to arrive.
func (n *internet) noteArrival(f *networktest.Flow, count int) {
	for _, h := range n.holds {
		for _, wave := range h.waves {
			for _, a := range wave {
				if a.flow == f {
					a.left -= count
				}
			}
		}
	}
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
			h.released, h.waves = true, n.wavesOf(h, w.random)
			w.trace("the network holds nothing more of what %v and %v send each other: %d waves",
				h.relay, h.target, len(h.waves))
		}
		return !slices.ContainsFunc(h.waves, func(wave []*arrival) bool { return !isOver(wave) })
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
	}
	return nil
}
