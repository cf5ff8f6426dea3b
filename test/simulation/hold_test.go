// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/network/networktest"
)

// link is a connection from a relay to a port of a target.
type link struct {
	relay, target network.Pollable
	there         *networktest.Flow
}

// newLinks returns a world with a data connection and a control connection, which have bytes in
// flight in both directions.
func newLinks(t *testing.T) (w *world, data, control link) {
	t.Helper()
	w = &world{internet: newInternet(true), log: zap.NewNop(), plan: &Plan{},
		random: rand.New(rand.NewPCG(1, 1))}
	relay := w.internet.host(&process{address: relayAddress(0)})
	target := w.internet.host(&process{address: targetAddress(0)})
	connect := func(port uint16) link {
		listener, err := target.Listen(t.Context(), netip.AddrPortFrom(targetAddress(0), port))
		if err != nil {
			t.Fatal(err)
		}
		dialled := make(chan network.Stream)
		go func() {
			s, err := relay.Dial(t.Context(), relayAddress(0), listener.Address())
			if err != nil {
				t.Error(err)
			}
			dialled <- s
		}()
		synctest.Wait()
		w.internet.allow(w.internet.dials[0])
		near := <-dialled
		far, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		flows := w.internet.network.Flows()
		l := link{near.(network.Pollable), far.(network.Pollable), flows[len(flows)-2]}
		for _, end := range []network.Pollable{l.relay, l.target} {
			if _, err := end.TryWrite([]byte("bytes")); err != 0 {
				t.Fatal(err)
			}
		}
		return l
	}
	return w, connect(rdmaPort), connect(controlPort)
}

// beginHold begins a hold of a second between the two hosts.
func (w *world) beginHold(scope Scope, order Order) {
	w.internet.hold(&hold{relay: relayAddress(0), target: targetAddress(0), scope: scope,
		order: order, until: time.Now().Add(time.Second)}, 0)
}

// deliverable returns which of the flows in flight can deliver something now, or after the pause
// between two waves.
func (w *world) deliverable() (flows []*networktest.Flow) {
	for range 2 {
		w.steps += longestWavePause
		w.internet.advanceHolds(w.steps)
	}
	for _, f := range w.internet.moving {
		if w.internet.deliverable(f) {
			flows = append(flows, f)
		}
	}
	return flows
}

func TestAHoldStopsWhatItsScopeSays(t *testing.T) {
	for scope, want := range map[Scope]int{
		"": 0, ToTarget: 2, DataConnections: 2, ControlConnections: 2, OneConnection: 2,
	} {
		synctest.Test(t, func(t *testing.T) {
			w, _, _ := newLinks(t)
			w.beginHold(scope, "")
			got := w.deliverable()
			if len(got) != want {
				t.Errorf("%q: %d flows deliver, want %d", scope, len(got), want)
			}
			for _, f := range got {
				if scope == ToTarget && f.To().Addr() == targetAddress(0) ||
					scope == DataConnections && isData(f) ||
					scope == ControlConnections && !isData(f) {
					t.Errorf("%q: %s delivers", scope, describe(f))
				}
			}
			time.Sleep(time.Second)
			w.internet.expireHolds(w)
			if got := len(w.deliverable()); got != 4 {
				t.Errorf("%q: %d flows deliver after the hold", scope, got)
			}
		})
	}
}

// What is held arrives in the order of the hold, and outlives its sender.
func TestAHoldReleasesInItsOrder(t *testing.T) {
	for order, dataFirst := range map[Order]bool{DataFirst: true, ControlFirst: false} {
		synctest.Test(t, func(t *testing.T) {
			w, data, control := newLinks(t)
			w.beginHold("", order)
			for _, l := range []link{data, control} {
				_ = l.relay.SetLinger(0)
				_ = l.relay.Close()
			}
			time.Sleep(time.Second)
			w.internet.expireHolds(w)
			first, second := data, control
			if !dataFirst {
				first, second = control, data
			}
			for len(w.deliverable()) > 0 && slices.Contains(w.internet.moving, first.there) {
				if slices.Contains(w.deliverable(), second.there) {
					t.Fatalf("%q: both deliver", order)
				}
				w.internet.deliver(first.there, 2, -1)
			}
			b := make([]byte, 8)
			if n, err := first.target.TryRead(b); string(b[:n]) != "bytes" || err != 0 {
				t.Errorf("%q: read %q, %v", order, b[:n], err)
			}
			if _, err := first.target.TryRead(b); err != syscall.ECONNRESET {
				t.Errorf("%q: the end is %v", order, err)
			}
		})
	}
}

// What was sent before something happened may arrive ahead of what was sent on other connections,
// and what followed behind that.
func TestAHoldSplitsWhatIsNotData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, data, control := newLinks(t)
		w.beginHold("", Split)
		w.internet.noteFault()
		for _, l := range []link{data, control} {
			if _, err := l.relay.TryWrite([]byte("more")); err != 0 {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		w.internet.expireHolds(w)
		var left [][2]int // of control and data
		for len(w.deliverable()) > 0 {
			left = append(left, [2]int{control.there.InFlight(), data.there.InFlight()})
			f := w.deliverable()[0]
			w.internet.deliver(f, w.internet.limitArrival(f, 64), -1)
		}
		left = slices.Compact(left)
		if want := [][2]int{{9, 9}, {4, 9}, {4, 0}}; !slices.Equal(left, want) {
			t.Errorf("of control and data are left %v, want %v", left, want)
		}
	})
}

// The order of one hold may be the opposite of another's.
func TestHoldsDoNotWaitForEachOtherForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _, _ := newLinks(t)
		w.beginHold("", DataFirst)
		w.beginHold("", ControlFirst)
		time.Sleep(time.Second)
		w.internet.expireHolds(w)
		if n := len(w.deliverable()); n > 0 {
			t.Fatalf("%d flows deliver", n)
		}
		time.Sleep(wavePatience + time.Millisecond)
		w.internet.expireHolds(w)
		if n := len(w.deliverable()); n != 4 || len(w.internet.holds) > 0 {
			t.Errorf("%d flows deliver, and %d holds are left", n, len(w.internet.holds))
		}
	})
}

// A kernel gives up a held connection by itself. What it has sent still arrives.
func TestKernelsGiveUpHeldConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, data, _ := newLinks(t)
		w.internet.deliver(w.internet.network.Flows()[1], 5, -1) // the target waits for nothing
		w.internet.hold(&hold{relay: relayAddress(0), target: targetAddress(0),
			until: time.Now().Add(longestHold)}, 0)
		fails := func(s network.Pollable) bool {
			_, err := s.TryWrite([]byte("x"))
			return err == syscall.ETIMEDOUT
		}
		w.internet.expireHolds(w)
		time.Sleep(lossTimeout + time.Millisecond)
		w.internet.expireHolds(w)
		if !fails(data.relay) {
			t.Error("the relay's kernel does not give up")
		}
		b := make([]byte, 8)
		if _, err := data.target.TryRead(b); err != syscall.EAGAIN {
			t.Errorf("the target's kernel has given up already: %v", err)
		}
		time.Sleep(idlePatience)
		w.internet.expireHolds(w)
		if _, err := data.target.TryRead(b); err != syscall.ETIMEDOUT {
			t.Errorf("the target's kernel does not give up: %v", err)
		}
		if n := data.there.InFlight(); n <= len("bytes") {
			t.Errorf("%d in flight", n)
		}
	})
}
