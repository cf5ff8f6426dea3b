// SPDX-License-Identifier: Apache-2.0

package relay_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// ownedVolume is a volume that one of several fake targets owns at a time.
type ownedVolume struct {
	owner atomic.Int64
	stale atomic.Int64 // the target that does not know that it is not the owner, plus 1
	mu    sync.Mutex
	lost  []chan struct{} // by target; closed when it loses the volume
}

// startOwners starts fake targets of one volume, which the first one owns.
func startOwners(t *testing.T, count int) (*ownedVolume, []*fakeTarget) {
	v := &ownedVolume{lost: make([]chan struct{}, count)}
	all := make([]*fakeTarget, count)
	for i := range all {
		v.lost[i] = make(chan struct{})
		all[i] = startFakeTarget(t, func(int) (error, bool) {
			if v.owner.Load() != int64(i) && v.stale.Load() != int64(i)+1 {
				return status.Errorf(status.NoLock, "target %d is a stand-by", i), true
			}
			return nil, false
		}, func(f *fakeTarget) {
			f.reply.Fenced, f.reply.UUID = true, [16]byte{1}
			f.ended = func() <-chan struct{} {
				v.mu.Lock()
				defer v.mu.Unlock()
				return v.lost[i]
			}
		})
	}
	return v, all
}

// move makes another target the owner, and the former one end its connections.
func (v *ownedVolume) move(to int) { v.endConnections(int(v.owner.Swap(int64(to)))) }

// endConnections lets a target end the connections that exist.
func (v *ownedVolume) endConnections(of int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	close(v.lost[of])
	v.lost[of] = make(chan struct{})
}

func addressesOf(targets []*fakeTarget) (addresses []netip.AddrPort) {
	for _, f := range targets {
		addresses = append(addresses, f.listener.Address())
	}
	return addresses
}

// quickly is a schedule for tests that wait for a target.
var quickly = retry.Policy{FirstPause: time.Millisecond, LongestPause: 10 * time.Millisecond}

// configTo returns the configuration of the channel with other targets.
func (c *chain) configTo(targets []netip.AddrPort) relay.ChannelConfig {
	config := c.channel
	config.Targets = targets
	return config
}

func (c *chain) status() relay.ChannelStatus { return c.relay.Channels()[0] }

func (c *chain) awaitTarget(f *fakeTarget) {
	c.t.Helper()
	testkit.Eventually(c.t, "the channel uses the target", func() bool {
		s := c.status()
		return s.Target == f.listener.Address() && s.Link.State == relay.LinkReady
	})
}

// openVolume opens the volume, and tries again while the client has done so too often: each target
// that turns out to be a stand-by is a connection of the session.
func (c *chain) openVolume() {
	c.t.Helper()
	testkit.Eventually(c.t, "the volume is open", func() bool {
		err := c.call(&controlmsg.OpenVolume{})
		if err != nil && !errors.Is(err, status.Again) {
			c.t.Fatal(err)
		}
		return err == nil
	})
}

func TestAChannelFollowsItsVolumeFromTargetToTarget(t *testing.T) {
	for _, order := range []relay.TargetOrder{relay.PreferredOrder, relay.AnyOrder} {
		t.Run(string(order), func(t *testing.T) {
			volume, all := startOwners(t, 3)
			c := &chain{t: t}
			c.startRelay(relay.ChannelConfig{Targets: addressesOf(all), TargetOrder: order,
				Reconnect: quickly, SessionWait: retry.Within(testkit.Patience)})
			c.awaitTarget(all[0])
			for moves, next := range []int{1, 2, 0, 2} {
				volume.move(next)
				c.connect()
				c.openVolume()
				c.requester.Close(nil)
				c.awaitTarget(all[next])
				if s := c.status(); s.TargetMoves != uint64(moves+1) || len(s.Targets) != len(all) {
					t.Errorf("the channel is %+v", s)
				}
				testkit.Eventually(t, "the others are stand-bys with a next attempt", func() bool {
					for i, target := range c.status().Targets {
						l := &target.Link
						if i != next && (l.State != relay.LinkStandBy || l.NextAttempt == nil ||
							!errors.Is(l.LastError, status.NoLock)) {
							return false
						}
					}
					return true
				})
			}
			for i, target := range c.status().Targets {
				if target.Link.Failures > 0 {
					t.Errorf("target %d: the answers of a stand-by count as failures: %+v", i,
						target.Link)
				}
			}
		})
	}
}

// A target that is cut off from its cluster cannot know that another one has taken over from it.
func TestAChannelLeavesATargetThatHasNotNoticedATakeOver(t *testing.T) {
	volume, all := startOwners(t, 2)
	c := &chain{t: t}
	c.startRelay(relay.ChannelConfig{Targets: addressesOf(all), Reconnect: quickly,
		SessionWait: retry.Within(testkit.Patience)})
	c.awaitTarget(all[0])
	testkit.Eventually(t, "the relay knows the other one as a stand-by", func() bool {
		return c.status().Targets[1].Link.State == relay.LinkStandBy
	})
	open := func() {
		t.Helper()
		c.connect()
		c.openVolume()
	}
	open()
	volume.stale.Store(1)
	volume.owner.Store(1)
	select {
	case <-c.requester.Done():
	case <-time.After(testkit.Patience):
		t.Fatal("the session at the former owner does not end")
	}
	if err := c.requester.Err(); !strings.Contains(err.Error(), "moved") {
		t.Errorf("the session ended with %v", err)
	}
	c.awaitTarget(all[1])
	open() // at the new owner, although the former one, too, is ready and preferred
	defer c.requester.Close(nil)
	if s := c.status(); s.Target != all[1].listener.Address() || s.TargetMoves != 1 {
		t.Errorf("the channel is %+v", s)
	}
	volume.stale.Store(0)
	volume.endConnections(0) // the former owner has noticed
	volume.move(0)           // and owns the volume again
	c.awaitTarget(all[0])
}

// The name of a host may stand for several addresses of one target. When it takes over, all of them
// become ready, and none is in doubt because of another.
func TestATakeOverByATargetWithTwoAddressesIsOneMove(t *testing.T) {
	volume, all := startOwners(t, 3)
	for i, process := range []uint64{1, 2, 2} {
		all[i].process.Store(process)
	}
	c := &chain{t: t}
	c.startRelay(relay.ChannelConfig{Targets: addressesOf(all), Reconnect: quickly,
		SessionWait: retry.Within(testkit.Patience)})
	c.awaitTarget(all[0])
	volume.move(1)
	volume.stale.Store(3) // both addresses of the second target lead to an owner
	testkit.Eventually(t, "both addresses are ready", func() bool { return c.readyTargets() == 2 })
	c.connect()
	defer func() { c.requester.Close(nil) }()
	c.openVolume()
	testkit.Eventually(t, "the former owner is a stand-by", func() bool {
		return c.status().Targets[0].Link.State == relay.LinkStandBy
	})
	if s := c.status(); s.TargetMoves != 1 {
		t.Errorf("the channel has moved %d times: %+v", s.TargetMoves, s)
	}
}

// A target needs no fence against itself, whatever number of its addresses the channel has, and
// however often it restarts.
func TestAddressesOfOneTargetAreNotSeveralTargets(t *testing.T) {
	volume, all := startOwners(t, 1)
	second := startFakeTarget(t, all[0].answer, func(f *fakeTarget) { f.ended = all[0].ended })
	all[0].reply.Fenced = false
	all = append(all, second)
	c := &chain{t: t}
	for process := range uint64(3) {
		for _, f := range all {
			f.process.Store(process + 1)
		}
		if process == 0 {
			c.startRelay(relay.ChannelConfig{Targets: addressesOf(all), Reconnect: quickly})
		} else {
			volume.move(0)
		}
		testkit.Eventually(t, "both addresses are ready", func() bool {
			ready := 0
			for _, target := range c.status().Targets {
				if target.Link.State == relay.LinkReady && target.Link.Connects == process+1 {
					ready++
				}
			}
			return ready == len(all)
		})
	}
}

func TestAPortThatIsNoTargetsIsExplained(t *testing.T) {
	silent, err := network.Kernel{}.Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	c := &chain{t: t}
	c.startRelay(relay.ChannelConfig{Reconnect: quickly, ControlTimeout: 10 * time.Millisecond,
		Targets: []netip.AddrPort{silent.Address()}})
	testkit.Eventually(t, "the relay asks for the port", func() bool {
		err := c.status().Targets[0].Link.LastError
		return errors.Is(err, status.TimeOut) && strings.Contains(err.Error(), "--listen-port")
	})
	if err := silent.Close(); err != nil {
		t.Error(err)
	}
}

// localhost may have an address at which its target does not listen. Only the kernel's refusal
// proves that: a target that has been stopped accepts connections. If another target comes there,
// the relay never accepts it.
func TestALoopbackAddressWithoutATargetIsNoOtherTarget(t *testing.T) {
	lost := make(chan struct{})
	var isDown atomic.Bool
	serving := startFakeTarget(t, func(int) (error, bool) {
		if isDown.Load() {
			return status.Errorf(status.Shutdown, "down"), true
		}
		return nil, false
	}, func(f *fakeTarget) { f.ended = func() <-chan struct{} { return lost } })
	serving.process.Store(1)
	address := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"),
		serving.listener.Address().Port())
	silent, err := network.Kernel{}.Listen(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	c := &chain{t: t}
	c.startRelay(relay.ChannelConfig{Reconnect: quickly, ControlTimeout: testkit.Patience,
		Targets: []netip.AddrPort{serving.listener.Address(), address}})
	link := func(i int) relay.LinkStatus { return c.status().Targets[i].Link }
	isRejected := func(i int) bool {
		err := link(i).LastError
		return err != nil && strings.Contains(err.Error(), "does not keep the others from writing")
	}
	testkit.Eventually(t, "the target is rejected beside a silent one", func() bool { return isRejected(0) })
	if link(0).Connects > 0 {
		t.Error("the target was accepted beside a silent one")
	}
	if err := silent.Close(); err != nil {
		t.Error(err)
	}
	c.awaitTarget(serving)
	testkit.Eventually(t, "the address counts as deserted", func() bool {
		targets := c.status().Targets
		return targets[1].Deserted && !targets[0].Deserted
	})
	other := startFakeTarget(t, func(int) (error, bool) { return nil, false },
		func(f *fakeTarget) { f.address = address })
	other.process.Store(2)
	testkit.Eventually(t, "the other target is rejected", func() bool { return isRejected(1) })
	if s := c.status(); s.Target != serving.listener.Address() || s.Targets[1].Deserted ||
		link(0).State != relay.LinkReady {
		t.Errorf("the channel is %+v", s)
	}
	isDown.Store(true)
	close(lost)
	before := uint64(0)
	testkit.Eventually(t, "the first target is lost", func() bool {
		before = link(1).Failures
		return link(0).State != relay.LinkReady
	})
	testkit.Eventually(t, "the other target has tried again", func() bool {
		return link(1).Failures > before+1 || link(1).Connects > 0
	})
	if link(1).Connects > 0 || !isRejected(1) {
		t.Errorf("the other target was accepted: %+v", link(1))
	}
}

// withoutAddress is a network in which connections to an address fail. Without a route, the machine
// does not have the address; otherwise the error means that no port is free.
type withoutAddress struct {
	network.Kernel
	address netip.AddrPort
	noRoute error
}

func (n withoutAddress) Dial(
	ctx context.Context, local netip.Addr, remote netip.AddrPort,
) (network.Stream, error) {
	if remote == n.address {
		return nil, os.NewSyscallError("connect", syscall.EADDRNOTAVAIL)
	}
	return n.Kernel.Dial(ctx, local, remote)
}

func (n withoutAddress) SourceAddress(remote netip.AddrPort) (netip.Addr, error) {
	if remote == n.address && n.noRoute != nil {
		return netip.Addr{}, os.NewSyscallError("connect", n.noRoute)
	}
	return n.Kernel.SourceAddress(remote)
}

// localhost may have an address that the machine lacks, for instance if IPv6 is switched off.
func TestALoopbackAddressThatTheMachineLacksIsNoOtherTarget(t *testing.T) {
	for name, test := range map[string]struct {
		noRoute error
		serves  bool
	}{
		"IPv6 is switched off": {syscall.EADDRNOTAVAIL, true},
		"without IPv6":         {syscall.EAFNOSUPPORT, true},
		"no port is free":      {nil, false},
		"no descriptor":        {syscall.EMFILE, false},
	} {
		t.Run(name, func(t *testing.T) {
			serving := startFakeTarget(t, func(int) (error, bool) { return nil, false })
			serving.process.Store(1)
			lacking := netip.AddrPortFrom(netip.IPv6Loopback(), serving.listener.Address().Port())
			log, warnings := observer.New(zap.WarnLevel)
			c := &chain{t: t, options: chainOptions{logger: zap.New(log),
				network: withoutAddress{address: lacking, noRoute: test.noRoute}}}
			c.startRelay(relay.ChannelConfig{Reconnect: quickly,
				Targets: []netip.AddrPort{serving.listener.Address(), lacking}})
			link := func() relay.LinkStatus { return c.status().Targets[1].Link }
			if test.serves {
				c.awaitTarget(serving)
			} else {
				testkit.Eventually(t, "the target is rejected", func() bool { return serving.opened.Load() > 3 })
			}
			tryAgain := func() {
				before := link().Failures
				testkit.Eventually(t, "the address is tried again", func() bool {
					return link().Failures > before+2
				})
			}
			tryAgain()
			s := c.status()
			if connected := s.Targets[0].Link.Connects > 0; connected != test.serves {
				t.Errorf("the channel is %+v", s)
			}
			saysSo := strings.Contains(link().LastError.Error(), "no route to it (is IPv6")
			if saysSo != test.serves {
				t.Errorf("the reason is %v", link().LastError)
			}
			// A later attempt is no news. The first is, unless the channel does not need it.
			outages := warnings.FilterMessage("target is not available").
				FilterField(zap.Stringer("target", lacking))
			if !test.serves && outages.Len() == 0 {
				t.Errorf("the outage is not logged: %v", warnings.All())
			}
			warned := warnings.Len()
			tryAgain()
			if test.serves && warnings.Len() > warned {
				t.Errorf("warnings: %v", warnings.All()[warned:])
			}
		})
	}
}

func TestTheOrderOfTargetsDecidesBetweenThoseThatAreReady(t *testing.T) {
	for _, order := range []relay.TargetOrder{relay.PreferredOrder, relay.AnyOrder} {
		t.Run(string(order), func(t *testing.T) {
			var down [3]atomic.Bool
			var all []*fakeTarget
			var ends [3]chan struct{}
			for i := range down {
				ends[i] = make(chan struct{})
				f := startFakeTarget(t, func(int) (error, bool) {
					if down[i].Load() {
						return status.Errorf(status.Shutdown, "down"), true
					}
					return nil, false
				}, func(f *fakeTarget) {
					f.reply.Fenced = true
					f.ended = func() <-chan struct{} { return ends[i] }
				})
				all = append(all, f)
			}
			c := &chain{t: t}
			c.startRelay(relay.ChannelConfig{Targets: addressesOf(all), TargetOrder: order,
				Reconnect: retry.Policy{FirstPause: time.Hour, LongestPause: time.Hour}})
			testkit.Eventually(t, "all targets are ready", func() bool { return c.readyTargets() == len(all) })
			if order == relay.PreferredOrder {
				c.awaitTarget(all[0])
			} // otherwise the first to answer serves
			current := indexOf(all, c.status().Target)
			for range 2 {
				former := current
				down[current].Store(true)
				close(ends[current])
				testkit.Eventually(t, "the channel has moved", func() bool {
					current = indexOf(all, c.status().Target)
					return current != former
				})
				if want := (former + 1) % len(all); current != want {
					t.Errorf("the channel moved from %d to %d, want %d", former, current, want)
				}
			}
		})
	}
}

func indexOf(all []*fakeTarget, address netip.AddrPort) int {
	for i, f := range all {
		if f.listener.Address() == address {
			return i
		}
	}
	return -1
}

func (c *chain) readyTargets() (ready int) {
	for _, target := range c.status().Targets {
		if target.Link.State == relay.LinkReady {
			ready++
		}
	}
	return ready
}

func TestTargetsThatCannotReplaceOneAnotherAreRefused(t *testing.T) {
	for name, test := range map[string]struct {
		second controlmsg.OpenVolumeReply // the first is fenced and has the UUID 1
		want   string
	}{
		"another volume": {controlmsg.OpenVolumeReply{Fenced: true, UUID: [16]byte{2}},
			"offers another volume"},
		"no fence": {controlmsg.OpenVolumeReply{UUID: [16]byte{1}}, "shared=fenced-by-operator"},
	} {
		t.Run(name, func(t *testing.T) {
			_, all := startOwners(t, 1)
			var firstIsReady atomic.Bool
			all = append(all, startFakeTarget(t, func(int) (error, bool) {
				if !firstIsReady.Load() {
					return status.Errorf(status.Again, "not yet"), true
				}
				return nil, false
			}, func(f *fakeTarget) {
				f.reply.Fenced, f.reply.UUID = test.second.Fenced, test.second.UUID
			}))
			c := &chain{t: t}
			c.startRelay(relay.ChannelConfig{Targets: addressesOf(all), Reconnect: quickly})
			c.awaitTarget(all[0])
			firstIsReady.Store(true)
			testkit.Eventually(t, "the second target is refused", func() bool {
				second := c.status().Targets[1].Link
				return second.State == relay.LinkWaiting && second.LastError != nil &&
					strings.Contains(second.LastError.Error(), test.want)
			})
			// A single target may change its volume, as one in memory does at each restart.
			if err := c.relay.Reconfigure(t.Context(), relay.Settings{
				Channels: []relay.ChannelConfig{c.configTo(addressesOf(all[1:]))}}); err != nil {
				t.Fatal(err)
			}
			c.awaitTarget(all[1])
		})
	}
}

func TestAReloadChangesTheTargetsOfAChannel(t *testing.T) {
	volume, all := startOwners(t, 3)
	c := &chain{t: t}
	c.startRelay(relay.ChannelConfig{Targets: addressesOf(all[:2]), Reconnect: quickly})
	c.awaitTarget(all[0])
	connects := c.status().Link.Connects
	reconfigure := func(targets []*fakeTarget) {
		t.Helper()
		if err := c.relay.Reconfigure(t.Context(), relay.Settings{
			Channels: []relay.ChannelConfig{c.configTo(addressesOf(targets))}}); err != nil {
			t.Fatal(err)
		}
	}
	reconfigure([]*fakeTarget{all[2], all[0]})
	if s := c.status(); s.Target != all[0].listener.Address() || s.Link.Connects != connects ||
		s.TargetMoves > 0 {
		t.Errorf("the target that stayed has been left: %+v", s)
	}
	volume.move(2)
	c.awaitTarget(all[2])
	reconfigure(all[1:2])
	volume.move(1)
	c.awaitTarget(all[1])
}

func TestAClientLearnsTheLongestLeaseOfItsTargets(t *testing.T) {
	always := func(int) (error, bool) { return nil, false }
	f := startFakeTarget(t, always)
	f.leaseMs.Store(1000)
	c := &chain{t: t}
	c.startRelay(relay.ChannelConfig{Targets: addressesOf([]*fakeTarget{f})})
	c.awaitTarget(f)
	c.connect()
	if c.hello.LeaseMs != 5000 {
		t.Errorf("the client learns of %d ms, want the usual 5000: the target may be replaced",
			c.hello.LeaseMs)
	}
	f.leaseMs.Store(20_000) // as if the target had been replaced
	err := c.call(&controlmsg.OpenVolume{})
	if !errors.Is(err, status.NotConnected) || !strings.Contains(err.Error(), "20s") ||
		!strings.Contains(err.Error(), "5s") {
		t.Errorf("a lease for which the client does not wait: %v", err)
	}
	c.requester.Close(nil)
	c.connect()
	if c.hello.LeaseMs != 20_000 {
		t.Errorf("the client learns of %d ms, want the target's 20000", c.hello.LeaseMs)
	}
	if err := c.call(&controlmsg.OpenVolume{}); err != nil {
		t.Error(err)
	}
}

func TestTargetsOfTheApplicationsHaveNoLeases(t *testing.T) {
	c := &chain{t: t}
	nobody := netip.MustParseAddrPort("127.0.0.1:1")
	c.startRelay(relay.ChannelConfig{Targets: []netip.AddrPort{nobody},
		TargetProtocol: "doca-3.2"})
	c.connect()
	if c.hello.LeaseMs != 0 {
		t.Errorf("the client learns of leases of %d ms", c.hello.LeaseMs)
	}
}

// A client that gives up before session_wait is over gets the reason before it does.
func TestAClientWithLittleTimeLearnsWhyThereIsNoTarget(t *testing.T) {
	c := &chain{t: t, options: chainOptions{controlTimeout: 2 * time.Second}}
	nobody := netip.MustParseAddrPort("127.0.0.1:1")
	c.startRelay(relay.ChannelConfig{Targets: []netip.AddrPort{nobody},
		SessionWait: retry.Within(testkit.Patience)})
	c.connect()
	for range 2 {
		err := c.call(&controlmsg.OpenVolume{})
		if !errors.Is(err, status.NotConnected) ||
			!strings.Contains(err.Error(), "target "+nobody.String()+" cannot be reached") {
			t.Errorf("open_volume: %v", err)
		}
	}
}
