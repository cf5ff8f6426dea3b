// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/test/chain/chaintest"
)

// fleet is one relay with many channels, to several targets.
type fleet struct {
	*chaintest.Chain // its relay only
	targets          []*chaintest.Chain
}

// startFleet starts the targets, and a relay with the channels that channels returns for their
// addresses.
func startFleet(t testing.TB, targets int,
	channels func(addresses []netip.AddrPort) []relay.ChannelConfig) *fleet {
	t.Helper()
	f := &fleet{Chain: chaintest.New(t)}
	var addresses []netip.AddrPort
	for range targets {
		c := f.startTargetAt(f.Loopback)
		f.targets = append(f.targets, c)
		addresses = append(addresses, c.Target.Address())
	}
	f.StartRelayWith(relay.Config{Settings: relay.Settings{Channels: channels(addresses)}})
	t.Cleanup(func() { f.StopRelay() })
	return f
}

// startTargetAt starts a target that runs until the test ends.
func (f *fleet) startTargetAt(listen netip.AddrPort) *chaintest.Chain {
	f.T.Helper()
	c := &chaintest.Chain{T: f.T, Log: f.Log, Loopback: f.Loopback}
	c.StartTarget(options{}, listen)
	f.T.Cleanup(func() { c.StopTarget() })
	return c
}

// small returns the configuration of a client that uses few resources of a channel.
func (f *fleet) small(channel string) client.Config {
	config := f.Config()
	config.ChannelName, config.BufferSize, config.Depth, config.SyncDepth = channel, 64<<10, 4, 2
	return config
}

func TestSixteenChannelsServeSixtyFourSessionsWithinTheirLimits(t *testing.T) {
	chaintest.Parallel(t)
	const channels, targets, sessions = 16, 4, 4
	f := startFleet(t, targets, func(addresses []netip.AddrPort) (all []relay.ChannelConfig) {
		for i := range channels {
			c := chaintest.ChannelTo(fmt.Sprint("channel-", i), addresses[i%targets])
			c.Limits = relay.Limits{MaxSessions: sessions, MaxDepth: 8, MaxQueues: 2}
			all = append(all, c)
		}
		return all
	})
	// Each session uses its own part of its target's volume.
	const parts = channels / targets * sessions
	const share = volumeSize / parts
	var running sync.WaitGroup
	opened := make(chan struct{})
	var open sync.WaitGroup
	open.Add(channels * sessions)
	for i := range channels {
		for j := range sessions {
			running.Go(func() {
				v, err := client.Open(f.Context(), f.small(fmt.Sprint("channel-", i)))
				open.Done()
				if err != nil {
					t.Errorf("channel %d, session %d: %v", i, j, err)
					return
				}
				<-opened
				offset := int64(i/targets*sessions+j) * share
				want := bytes.Repeat([]byte{byte(1 + i*sessions + j)}, share)
				got := make([]byte, share)
				if _, err := v.WriteAt(want, offset); err != nil {
					t.Errorf("channel %d, session %d: write: %v", i, j, err)
				}
				if _, err := v.ReadAt(got, offset); err != nil || !bytes.Equal(got, want) {
					t.Errorf("channel %d, session %d does not read what it wrote (%v)", i, j, err)
				}
				if err := v.Close(f.Context()); err != nil {
					t.Errorf("channel %d, session %d: close: %v", i, j, err)
				}
			})
		}
	}
	open.Wait()
	if got := f.Relay.Sessions(); got != channels*sessions {
		t.Errorf("%d sessions are open", got)
	}
	for i := range channels {
		name := fmt.Sprint("channel-", i)
		if s := f.Status(name); s.Sessions != sessions ||
			s.Target != f.targets[i%targets].Target.Address() {
			t.Errorf("%s has %d sessions with target %v", name, s.Sessions, s.Target)
		}
		if v, err := client.Open(f.Context(), f.small(name)); !errors.Is(err, status.Full) {
			t.Errorf("%s took one session more than its limit: %v, %v", name, v, err)
		}
	}
	close(opened)
	running.Wait()
	greedy := f.small("channel-3")
	greedy.Queues, greedy.Depth = 1, 9
	if _, err := client.Open(f.Context(), greedy); err == nil ||
		!strings.Contains(err.Error(), "8") {
		t.Errorf("depth beyond the limit: %v", err)
	}
}

func TestTheSessionLimitOfTheRelayCoversAllChannels(t *testing.T) {
	chaintest.Parallel(t)
	f := startFleet(t, 1, func(addresses []netip.AddrPort) []relay.ChannelConfig {
		return []relay.ChannelConfig{chaintest.ChannelTo("a", addresses[0]),
			chaintest.ChannelTo("b", addresses[0])}
	})
	f.AwaitState("b", relay.LinkReady)
	settings := relay.Settings{MaxSessions: 2, Channels: []relay.ChannelConfig{
		chaintest.ChannelTo("a", f.targets[0].Target.Address()),
		chaintest.ChannelTo("b", f.targets[0].Target.Address()),
	}}
	if err := f.Relay.Reconfigure(f.Context(), settings); err != nil {
		t.Fatal(err)
	}
	f.Open(f.small("a"))
	second := f.Open(f.small("b"))
	if _, err := client.Open(f.Context(), f.small("a")); !errors.Is(err, status.Full) ||
		!strings.Contains(err.Error(), "maximum of 2 sessions") {
		t.Errorf("a third session: %v", err)
	}
	if got := f.Status("a").SessionsRefused; got != 1 {
		t.Errorf("%d sessions were refused", got)
	}
	if err := second.Close(f.Context()); err != nil {
		t.Fatal(err)
	}
	f.Await("the session has ended", func() bool { return f.Relay.Sessions() == 1 })
	f.Open(f.small("a"))
}

func TestTheLossOfATargetAffectsOnlyItsChannels(t *testing.T) {
	chaintest.Parallel(t)
	f := startFleet(t, 2, func(addresses []netip.AddrPort) []relay.ChannelConfig {
		return []relay.ChannelConfig{chaintest.ChannelTo("hit", addresses[0]),
			chaintest.ChannelTo("spared", addresses[1])}
	})
	hit, spared := f.Open(f.small("hit")), f.Open(f.small("spared"))
	address := f.targets[0].Target.Address()
	f.targets[0].StopTarget()
	if s := f.AwaitState("hit", relay.LinkWaiting).Link; s.Losses != 1 || s.LastError == nil ||
		s.Attempt == 0 || s.NextAttempt == nil {
		t.Errorf("the link to the lost target is %+v", s)
	}
	if _, err := hit.WriteAt([]byte("lost"), 0); err == nil {
		t.Error("a write to a target that is gone succeeded")
	}
	for range 100 {
		if _, err := spared.WriteAt([]byte("kept"), 0); err != nil {
			t.Fatalf("the other channel: %v", err)
		}
	}
	if s := f.Status("spared"); s.Link.State != relay.LinkReady || s.Link.Losses != 0 {
		t.Errorf("the other channel's link is %+v", s.Link)
	}
	f.targets[0].StartTarget(options{}, address)
	again := f.Open(f.small("hit")) // waits for the target, and so has it tried early
	if _, err := again.WriteAt([]byte("back"), 0); err != nil {
		t.Error(err)
	}
	if s := f.Status("hit").Link; s.Connects != 2 || s.Attempt != 0 || s.LastError != nil {
		t.Errorf("the link to the target that came back is %+v", s)
	}
}

// unused returns an address at which nobody listens.
func unused(t testing.TB) netip.AddrPort {
	t.Helper()
	c := chaintest.New(t)
	c.StartTarget(options{}, c.Loopback)
	address := c.Target.Address()
	c.StopTarget()
	return address
}

func TestAChannelObeysItsReconnectPolicyAndAReloadStartsOver(t *testing.T) {
	chaintest.Parallel(t)
	for _, attempts := range []uint32{0, 3} {
		t.Run(fmt.Sprint(attempts), func(t *testing.T) {
			config := chaintest.ChannelTo("c", unused(t))
			config.Reconnect = retry.Policy{Attempts: retry.Times(attempts),
				FirstPause: time.Millisecond, LongestPause: 2 * time.Millisecond}
			f := startFleet(t, 0,
				func([]netip.AddrPort) []relay.ChannelConfig {
					return []relay.ChannelConfig{config}
				})
			if s := f.AwaitState("c", relay.LinkGivenUp).Link; s.Attempt != int(attempts) ||
				s.Failures != uint64(attempts)+1 ||
				s.FailuresByCode[status.NotConnected] != s.Failures {
				t.Errorf("after giving up the link is %+v", s)
			}
			// Sessions wait forever, but not for a target that was given up.
			_, err := client.Open(f.Context(), f.small("c"))
			if !errors.Is(err, status.NotConnected) || !strings.Contains(err.Error(),
				"gave up on target") {
				t.Errorf("open: %v", err)
			}
			f.startTargetAt(config.Targets[0])
			if err := f.Relay.Reconfigure(f.Context(),
				relay.Settings{Channels: []relay.ChannelConfig{config}}); err != nil {
				t.Fatal(err)
			}
			f.AwaitState("c", relay.LinkReady)
			f.Open(f.small("c"))
		})
	}
}

func TestASessionWaitsForItsTargetAsLongAsConfigured(t *testing.T) {
	chaintest.Parallel(t)
	for name, c := range map[string]struct {
		wait  retry.Bound
		pause time.Duration // until the target is tried again for a session that waits
		ok    bool
	}{
		"not at all": {wait: retry.Within(0), pause: time.Hour},
		"a moment":   {wait: retry.Within(50 * time.Millisecond), pause: time.Hour},
		"forever":    {wait: retry.Forever(), pause: 10 * time.Millisecond, ok: true},
	} {
		t.Run(name, func(t *testing.T) {
			config := chaintest.ChannelTo("c", unused(t))
			config.SessionWait = c.wait
			config.Reconnect = retry.Policy{FirstPause: c.pause, LongestPause: time.Hour}
			ready := make(chan relay.Readiness, 1000)
			f := &fleet{Chain: chaintest.New(t)}
			f.StartRelayWith(relay.Config{OnReady: func(now relay.Readiness) { ready <- now },
				Settings: relay.Settings{Channels: []relay.ChannelConfig{config}}})
			t.Cleanup(func() { f.StopRelay() })
			f.Await("the pause after the second attempt, which follows the first one soon", func() bool {
				link := f.Status("c").Link
				return link.State == relay.LinkWaiting && link.Failures >= 2
			})
			if now := <-ready; !errors.Is(now.Err, status.NotConnected) {
				t.Errorf("the relay is ready: %v", now)
			}
			opened, begun := make(chan error, 1), time.Now()
			go func() {
				v, err := client.Open(f.Context(), f.small("c"))
				if err == nil {
					err = v.Close(context.Background())
				}
				opened <- err
			}()
			if !c.ok {
				if err := <-opened; !errors.Is(err, status.NotConnected) ||
					!strings.Contains(err.Error(), "attempt") {
					t.Errorf("open: %v", err)
				}
				if limit, _ := c.wait.Duration(); time.Since(begun) < limit {
					t.Errorf("the session waited %v, want %v", time.Since(begun), limit)
				}
				return
			}
			f.Await("the session waits", func() bool { return f.Relay.Sessions() == 1 })
			before := f.Status("c").Link.Failures
			f.Await("the target is tried again",
				func() bool { return f.Status("c").Link.Failures > before+1 })
			f.startTargetAt(config.Targets[0])
			if err := <-opened; err != nil {
				t.Errorf("open: %v", err)
			}
		})
	}
}

func TestReconfiguringLeavesLiveSessionsAlone(t *testing.T) {
	chaintest.Parallel(t)
	var first relay.ChannelConfig
	f := startFleet(t, 1, func(addresses []netip.AddrPort) []relay.ChannelConfig {
		first = chaintest.ChannelTo("first", addresses[0])
		return []relay.ChannelConfig{first}
	})
	address := f.targets[0].Target.Address()
	live := f.Open(f.small("first"))
	reconfigure := func(channels ...relay.ChannelConfig) {
		t.Helper()
		if err := f.Relay.Reconfigure(f.Context(), relay.Settings{Channels: channels}); err != nil {
			t.Fatal(err)
		}
		if _, err := live.WriteAt([]byte("live"), 0); err != nil {
			t.Fatalf("the live session: %v", err)
		}
	}

	first.Limits.MaxDepth, first.Limits.MaxSessions = 4, 2
	reconfigure(first, chaintest.ChannelTo("second", address))
	f.Open(f.small("second"))
	second := f.Open(f.small("first"))
	if got := second.Info().Depth; got > 4 {
		t.Errorf("a new session has depth %d", got)
	}
	if _, err := client.Open(f.Context(), f.small("first")); !errors.Is(err, status.Full) {
		t.Errorf("a third session: %v", err)
	}

	reconfigure(chaintest.ChannelTo("second", address))
	if !f.Status("first").Retiring {
		t.Error("the removed channel is not reported as retiring")
	}
	impatient := f.small("first")
	impatient.ControlTimeout = 200 * time.Millisecond
	f.Await("the removed channel takes no clients", func() bool {
		v, err := client.Open(f.Context(), impatient)
		if err == nil {
			t.Error("the removed channel took a client")
			return v.Close(f.Context()) == nil
		}
		return errors.Is(err, status.NotFound)
	})
	for _, v := range []*client.Volume{live, second} {
		if err := v.Close(f.Context()); err != nil {
			t.Error(err)
		}
	}
	f.Await("the removed channel is released", func() bool { return len(f.Relay.Channels()) == 1 })

	twice := []relay.ChannelConfig{chaintest.ChannelTo("second", address),
		chaintest.ChannelTo("x", address),
		chaintest.ChannelTo("x", address)}
	err := f.Relay.Reconfigure(f.Context(), relay.Settings{Channels: twice})
	if !errors.Is(err, status.AlreadyExist) || len(f.Relay.Channels()) != 1 {
		t.Errorf("a channel twice: %v", err)
	}
}

// slowProvider is a provider whose servers keep their names, after Close was called, until the test
// lets go of them.
type slowProvider struct {
	comch.Provider
	release chan struct{}
}

type slowServer struct {
	comch.Server
	release chan struct{}
}

func (p slowProvider) Listen(ctx context.Context, config comch.ServerConfig) (comch.Server, error) {
	server, err := p.Provider.Listen(ctx, config)
	if err != nil {
		return nil, err
	}
	return slowServer{server, p.release}, nil
}

func (s slowServer) Close() error {
	<-s.release
	return s.Server.Close()
}

func TestAChannelThatIsAddedAgainComesUpOnceItsNameIsFree(t *testing.T) {
	chaintest.Parallel(t)
	f := &fleet{Chain: chaintest.New(t)}
	release := make(chan struct{})
	let := sync.OnceFunc(func() { close(release) })
	f.Provider = slowProvider{f.Provider, release}
	f.targets = append(f.targets, f.startTargetAt(f.Loopback))
	config := chaintest.ChannelTo("c", f.targets[0].Target.Address())
	f.StartRelayWith(relay.Config{
		Settings: relay.Settings{Channels: []relay.ChannelConfig{config}}})
	t.Cleanup(func() {
		let()
		f.StopRelay()
	})
	live := f.Open(f.small("c"))
	reconfigure := func(channels ...relay.ChannelConfig) {
		t.Helper()
		if err := f.Relay.Reconfigure(f.Context(), relay.Settings{Channels: channels}); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		reconfigure()
		reconfigure(config)
	}
	// The session of the first removed channel keeps that; the other two go once they may.
	if got := len(f.Relay.Channels()); got < 2 {
		t.Errorf("there are %d channels", got)
	}
	if s := f.Relay.Channels()[0]; s.Retiring || s.Address != "" {
		t.Errorf("the channel is %+v before the name is free", s)
	}
	let()
	f.AwaitListening()
	added := f.Open(f.small("c"))
	for _, v := range []*client.Volume{live, added} {
		if _, err := v.WriteAt([]byte("both"), 0); err != nil {
			t.Error(err)
		}
	}
	f.Await("only the channel with the live session retires",
		func() bool { return len(f.Relay.Channels()) == 2 })
}

// slowDevices is a provider whose device at one address opens when the test lets it.
type slowDevices struct {
	rdma.Provider
	slow    netip.Addr
	opening chan struct{} // receives a value when somebody opens the device
	release chan struct{}
}

func (p slowDevices) Open(address netip.Addr) (rdma.Device, error) {
	if address == p.slow {
		p.opening <- struct{}{}
		<-p.release
	}
	return p.Provider.Open(address)
}

func TestASlowDeviceDelaysOnlyItsChannel(t *testing.T) {
	chaintest.Parallel(t)
	f := &fleet{Chain: chaintest.New(t)}
	f.targets = append(f.targets, f.startTargetAt(f.Loopback))
	fast, slow := chaintest.ChannelTo("fast", f.targets[0].Target.Address()),
		chaintest.ChannelTo("slow", f.targets[0].Target.Address())
	devices := slowDevices{chaintest.NewRDMA(false), netip.MustParseAddr("127.0.0.2"),
		make(chan struct{}, 1), make(chan struct{})}
	slow.RDMAAddress = devices.slow
	f.StartRelayWith(relay.Config{RDMA: devices,
		Settings: relay.Settings{Channels: []relay.ChannelConfig{fast}}})
	let := sync.OnceFunc(func() { close(devices.release) })
	t.Cleanup(func() {
		let()
		f.StopRelay()
	})
	reconfigured := make(chan error, 1)
	fast.Limits.MaxSessions = 1
	go func() {
		reconfigured <- f.Relay.Reconfigure(f.Context(),
			relay.Settings{Channels: []relay.ChannelConfig{slow, fast}})
	}()
	<-devices.opening
	if s := f.Relay.Channels(); len(s) != 1 || s[0].Name != "fast" || s[0].Limits.MaxSessions != 1 {
		t.Errorf("while the device opens, the channels are %+v", s)
	}
	if _, err := f.Open(f.small("fast")).WriteAt([]byte("fast"), 0); err != nil {
		t.Error(err)
	}
	f.Relay.Drain()
	f.Relay.Resume()
	let()
	if err := <-reconfigured; err != nil {
		t.Fatal(err)
	}
	if s := f.Relay.Channels(); len(s) != 2 || s[0].Name != "slow" {
		t.Errorf("afterwards, the channels are %+v", s)
	}
	if _, err := f.Open(f.small("slow")).WriteAt([]byte("slow"), 0); err != nil {
		t.Error(err)
	}
}

func TestARelayThatEndsWhileAChannelIsAddedAddsNone(t *testing.T) {
	chaintest.Parallel(t)
	f := &fleet{Chain: chaintest.New(t)}
	f.targets = append(f.targets, f.startTargetAt(f.Loopback))
	devices := slowDevices{chaintest.NewRDMA(false), netip.MustParseAddr("127.0.0.2"),
		make(chan struct{}, 1), make(chan struct{})}
	f.StartRelayWith(relay.Config{RDMA: devices})
	slow := chaintest.ChannelTo("slow", f.targets[0].Target.Address())
	slow.RDMAAddress = devices.slow
	reconfigured := make(chan error, 1)
	go func() {
		reconfigured <- f.Relay.Reconfigure(f.Context(),
			relay.Settings{Channels: []relay.ChannelConfig{slow}})
	}()
	<-devices.opening
	drained := f.Relay.Drained()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		f.StopRelay()
	}()
	<-drained
	close(devices.release)
	if err := <-reconfigured; !errors.Is(err, status.BadState) {
		t.Errorf("the reconfiguration ended with %v", err)
	}
	<-stopped
	if n := len(f.Relay.Channels()); n != 0 {
		t.Errorf("there are %d channels", n)
	}
}

func TestQuickReloadsThatRemoveAndAddAChannelKeepIt(t *testing.T) {
	chaintest.Parallel(t)
	var config relay.ChannelConfig
	f := startFleet(t, 1, func(addresses []netip.AddrPort) []relay.ChannelConfig {
		config = chaintest.ChannelTo("c", addresses[0])
		return []relay.ChannelConfig{config}
	})
	live := f.Open(f.small("c"))
	for i := range 20 {
		for _, channels := range [][]relay.ChannelConfig{nil, {config}} {
			settings := relay.Settings{Channels: channels}
			if err := f.Relay.Reconfigure(f.Context(), settings); err != nil {
				t.Fatalf("reload %d: %v", i, err)
			}
		}
		if i%5 == 0 {
			f.AwaitListening()
			f.Open(f.small("c"))
		}
	}
	f.AwaitListening()
	v := f.Open(f.small("c"))
	for _, v := range []*client.Volume{live, v} {
		if _, err := v.WriteAt([]byte("both"), 0); err != nil {
			t.Error(err)
		}
	}
}
