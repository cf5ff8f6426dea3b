package chain

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// fleet is one relay with many channels to several targets.
type fleet struct {
	*chain  // its relay, and its ways to open volumes
	targets []*chain
}

// startFleet starts the targets and a relay with the channels that channels
// makes for their addresses.
func startFleet(t testing.TB, targets int, channels func(addresses []netip.AddrPort) []relay.ChannelConfig) *fleet {
	t.Helper()
	f := &fleet{chain: &chain{
		t: t, log: zap.NewNop(), provider: emulated.New(emulated.Options{Directory: filepath.Join(t.TempDir(), "comch")}),
	}}
	var addresses []netip.AddrPort
	for range targets {
		c := &chain{t: t, log: f.log}
		c.startTarget(options{}, loopback)
		t.Cleanup(func() { c.stopTarget() })
		f.targets = append(f.targets, c)
		addresses = append(addresses, c.target.Address())
	}
	f.startRelayWith(relay.Config{Settings: relay.Settings{Channels: channels(addresses)}})
	t.Cleanup(func() { f.stopRelay() })
	return f
}

// startRelayWith fills in what relays of tests have in common.
func (c *chain) startRelayWith(config relay.Config) {
	c.t.Helper()
	config.Comch, config.RDMA, config.CPUs, config.Logger = c.provider, iwarp.New(iwarp.Options{}), workers(2), c.log.Named("relay")
	var err error
	if c.relay, err = relay.New(c.context(), config); err != nil {
		c.t.Fatal(err)
	}
	run := c.run("relay", c.relay.Run)
	c.stopRelay = sync.OnceFunc(func() {
		run()
		if err := c.relay.Close(); err != nil {
			c.t.Errorf("close relay: %v", err)
		}
	})
}

func channel(name string, target netip.AddrPort) relay.ChannelConfig {
	return relay.ChannelConfig{
		ChannelID: relay.ChannelID{Device: emulated.DefaultDevice, Representor: emulated.DefaultRepresentor, Name: name},
		Target:    target, Volume: volumeName,
	}
}

// small is a client of a channel that takes up little.
func (f *fleet) small(channel string) client.Config {
	config := f.config()
	config.ChannelName, config.BufferSize, config.Depth, config.SyncDepth = channel, 64<<10, 4, 2
	return config
}

// status is that of the channel with the given name.
func (c *chain) status(name string) relay.ChannelStatus {
	c.t.Helper()
	for _, s := range c.relay.Channels() {
		if s.Name == name {
			return s
		}
	}
	return relay.ChannelStatus{}
}

func (c *chain) awaitState(name string, state relay.LinkState) {
	c.t.Helper()
	c.await(fmt.Sprintf("channel %s is %v", name, state), func() bool { return c.status(name).Link.State == state })
}

func TestSixteenChannelsServeSixtyFourSessionsWithinTheirLimits(t *testing.T) {
	const channels, targets, sessions = 16, 4, 4
	f := startFleet(t, targets, func(addresses []netip.AddrPort) (all []relay.ChannelConfig) {
		for i := range channels {
			c := channel(fmt.Sprint("channel-", i), addresses[i%targets])
			c.Limits = relay.Limits{MaxSessions: sessions, MaxDepth: 8, MaxQueues: 2}
			all = append(all, c)
		}
		return all
	})
	// Each session has a part of its target's volume for itself.
	const parts = channels / targets * sessions
	const share = volumeSize / parts
	var running sync.WaitGroup
	opened := make(chan struct{})
	var open sync.WaitGroup
	open.Add(channels * sessions)
	for i := range channels {
		for j := range sessions {
			running.Go(func() {
				v, err := client.Open(f.context(), f.small(fmt.Sprint("channel-", i)))
				open.Done()
				if err != nil {
					t.Errorf("channel %d, session %d: %v", i, j, err)
					return
				}
				<-opened
				offset := int64(i/targets*sessions+j) * share
				want, got := bytes.Repeat([]byte{byte(1 + i*sessions + j)}, share), make([]byte, share)
				if _, err := v.WriteAt(want, offset); err != nil {
					t.Errorf("channel %d, session %d: write: %v", i, j, err)
				}
				if _, err := v.ReadAt(got, offset); err != nil || !bytes.Equal(got, want) {
					t.Errorf("channel %d, session %d does not read what it wrote (%v)", i, j, err)
				}
				if err := v.Close(f.context()); err != nil {
					t.Errorf("channel %d, session %d: close: %v", i, j, err)
				}
			})
		}
	}
	open.Wait()
	if got := f.relay.Sessions(); got != channels*sessions {
		t.Errorf("%d sessions are open", got)
	}
	for i := range channels {
		name := fmt.Sprint("channel-", i)
		if s := f.status(name); s.Sessions != sessions || s.Target != f.targets[i%targets].target.Address() {
			t.Errorf("%s has %d sessions with target %v", name, s.Sessions, s.Target)
		}
		if v, err := client.Open(f.context(), f.small(name)); !errors.Is(err, status.Full) {
			t.Errorf("%s took one session more than its limit: %v, %v", name, v, err)
		}
	}
	close(opened)
	running.Wait()
	greedy := f.small("channel-3")
	greedy.Queues, greedy.Depth = 1, 9
	if _, err := client.Open(f.context(), greedy); err == nil || !strings.Contains(err.Error(), "8") {
		t.Errorf("depth beyond the limit: %v", err)
	}
}

func TestTheLimitOfTheRelayHoldsForAllChannelsTogether(t *testing.T) {
	f := startFleet(t, 1, func(addresses []netip.AddrPort) []relay.ChannelConfig {
		return []relay.ChannelConfig{channel("a", addresses[0]), channel("b", addresses[0])}
	})
	f.awaitState("b", relay.LinkReady)
	settings := relay.Settings{MaxSessions: 2, Channels: []relay.ChannelConfig{
		channel("a", f.targets[0].target.Address()), channel("b", f.targets[0].target.Address()),
	}}
	if err := f.relay.Reconfigure(f.context(), settings); err != nil {
		t.Fatal(err)
	}
	f.open(f.small("a"))
	second := f.open(f.small("b"))
	if _, err := client.Open(f.context(), f.small("a")); !errors.Is(err, status.Full) || !strings.Contains(err.Error(), "maximum of 2 sessions") {
		t.Errorf("a third session: %v", err)
	}
	if got := f.status("a").SessionsRefused; got != 1 {
		t.Errorf("%d sessions were refused", got)
	}
	if err := second.Close(f.context()); err != nil {
		t.Fatal(err)
	}
	f.await("the session has ended", func() bool { return f.relay.Sessions() == 1 })
	f.open(f.small("a"))
}

func TestTheLossOfATargetIsTheMatterOfItsChannelsOnly(t *testing.T) {
	f := startFleet(t, 2, func(addresses []netip.AddrPort) []relay.ChannelConfig {
		return []relay.ChannelConfig{channel("hit", addresses[0]), channel("spared", addresses[1])}
	})
	hit, spared := f.open(f.small("hit")), f.open(f.small("spared"))
	address := f.targets[0].target.Address()
	f.targets[0].stopTarget()
	f.awaitState("hit", relay.LinkWaiting)
	if _, err := hit.WriteAt([]byte("lost"), 0); err == nil {
		t.Error("a write to a target that is gone succeeded")
	}
	for range 100 {
		if _, err := spared.WriteAt([]byte("kept"), 0); err != nil {
			t.Fatalf("the other channel: %v", err)
		}
	}
	if s := f.status("spared"); s.Link.State != relay.LinkReady || s.Link.Losses != 0 {
		t.Errorf("the other channel's link is %+v", s.Link)
	}
	if s := f.status("hit").Link; s.Losses != 1 || s.LastError == nil || s.Attempt == 0 || s.NextTry.IsZero() {
		t.Errorf("the link to the lost target is %+v", s)
	}
	f.targets[0].startTarget(options{}, address)
	again := f.open(f.small("hit")) // waits for the target, which has it tried early
	if _, err := again.WriteAt([]byte("back"), 0); err != nil {
		t.Error(err)
	}
	if s := f.status("hit").Link; s.Connects != 2 || s.Attempt != 0 || s.LastError != nil {
		t.Errorf("the link to the target that came back is %+v", s)
	}
}

// unused is an address at which nobody listens.
func unused(t testing.TB) netip.AddrPort {
	t.Helper()
	c := &chain{t: t, log: zap.NewNop()}
	c.startTarget(options{}, loopback)
	address := c.target.Address()
	c.stopTarget()
	return address
}

func TestAChannelGivesUpAsItsPolicySaysAndAReloadBeginsAnew(t *testing.T) {
	for _, attempts := range []uint32{0, 3} {
		t.Run(fmt.Sprint(attempts), func(t *testing.T) {
			config := channel("c", unused(t))
			config.Reconnect = retry.Policy{Attempts: retry.Times(attempts), FirstPause: time.Millisecond, LongestPause: 2 * time.Millisecond}
			f := startFleet(t, 0, func([]netip.AddrPort) []relay.ChannelConfig { return []relay.ChannelConfig{config} })
			f.awaitState("c", relay.LinkGivenUp)
			if s := f.status("c").Link; s.Attempt != int(attempts) || s.Failures != uint64(attempts)+1 {
				t.Errorf("after giving up the link is %+v", s)
			}
			begin := time.Now()
			if _, err := client.Open(f.context(), f.small("c")); !errors.Is(err, status.NotConnected) || !strings.Contains(err.Error(), "gave up on target") {
				t.Errorf("open: %v", err)
			}
			if took := time.Since(begin); took > relay.DefaultSessionWait {
				t.Errorf("a session waited %v for a target that was given up", took)
			}
			back := &chain{t: t, log: f.log}
			back.startTarget(options{}, config.Target)
			t.Cleanup(func() { back.stopTarget() })
			if err := f.relay.Reconfigure(f.context(), relay.Settings{Channels: []relay.ChannelConfig{config}}); err != nil {
				t.Fatal(err)
			}
			f.awaitState("c", relay.LinkReady)
			f.open(f.small("c"))
		})
	}
}

func TestASessionWaitsForItsTargetAsLongAsConfigured(t *testing.T) {
	for name, c := range map[string]struct {
		wait retry.Bound
		ok   bool
	}{
		"not at all": {retry.Within(0), false},
		"a moment":   {retry.Within(50 * time.Millisecond), false},
		"for ever":   {retry.Forever(), true},
	} {
		t.Run(name, func(t *testing.T) {
			config := channel("c", unused(t))
			config.SessionWait = c.wait
			// Only what a session asks for is tried: the pauses are too long.
			config.Reconnect = retry.Policy{FirstPause: 10 * time.Millisecond, LongestPause: time.Hour}
			ready := make(chan error, 1000)
			f := &fleet{chain: &chain{t: t, log: zap.NewNop(), provider: emulated.New(emulated.Options{Directory: filepath.Join(t.TempDir(), "comch")})}}
			f.startRelayWith(relay.Config{OnReady: func(err error) { ready <- err }, Settings: relay.Settings{Channels: []relay.ChannelConfig{config}}})
			t.Cleanup(func() { f.stopRelay() })
			f.awaitState("c", relay.LinkWaiting)
			if err := <-ready; !errors.Is(err, status.NotConnected) {
				t.Errorf("the relay is ready: %v", err)
			}
			opened := make(chan error, 1)
			go func() {
				v, err := client.Open(f.context(), f.small("c"))
				if err == nil {
					err = v.Close(context.Background())
				}
				opened <- err
			}()
			if !c.ok {
				if err := <-opened; !errors.Is(err, status.NotConnected) || !strings.Contains(err.Error(), "attempt") {
					t.Errorf("open: %v", err)
				}
				return
			}
			time.Sleep(100 * time.Millisecond) // the session waits
			back := &chain{t: t, log: f.log}
			back.startTarget(options{}, config.Target)
			t.Cleanup(func() { back.stopTarget() })
			if err := <-opened; err != nil {
				t.Errorf("open: %v", err)
			}
		})
	}
}

func TestReconfiguringLeavesLiveSessionsAlone(t *testing.T) {
	var first relay.ChannelConfig
	f := startFleet(t, 1, func(addresses []netip.AddrPort) []relay.ChannelConfig {
		first = channel("first", addresses[0])
		return []relay.ChannelConfig{first}
	})
	address := f.targets[0].target.Address()
	live := f.open(f.small("first"))
	reconfigure := func(channels ...relay.ChannelConfig) {
		t.Helper()
		if err := f.relay.Reconfigure(f.context(), relay.Settings{Channels: channels}); err != nil {
			t.Fatal(err)
		}
		if _, err := live.WriteAt([]byte("live"), 0); err != nil {
			t.Fatalf("the live session: %v", err)
		}
	}

	first.Limits.MaxDepth, first.Limits.MaxSessions = 4, 2
	reconfigure(first, channel("second", address))
	f.open(f.small("second"))
	second := f.open(f.small("first"))
	if got := second.Info().Depth; got > 4 {
		t.Errorf("a new session has depth %d", got)
	}
	if _, err := client.Open(f.context(), f.small("first")); !errors.Is(err, status.Full) {
		t.Errorf("a third session: %v", err)
	}

	reconfigure(channel("second", address))
	if !f.status("first").Retiring {
		t.Error("the channel that was removed is not said to be")
	}
	impatient := f.small("first")
	impatient.ControlTimeout = 200 * time.Millisecond
	f.await("the removed channel takes no clients", func() bool {
		_, err := client.Open(f.context(), impatient)
		return errors.Is(err, status.NotFound)
	})
	for _, v := range []*client.Volume{live, second} {
		if err := v.Close(f.context()); err != nil {
			t.Error(err)
		}
	}
	f.await("the removed channel is released", func() bool { return len(f.relay.Channels()) == 1 })

	err := f.relay.Reconfigure(f.context(), relay.Settings{Channels: []relay.ChannelConfig{channel("x", address), channel("x", address)}})
	if !errors.Is(err, status.AlreadyExist) || len(f.relay.Channels()) != 1 {
		t.Errorf("a channel twice: %v", err)
	}
}
