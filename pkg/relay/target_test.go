// SPDX-License-Identifier: Apache-2.0

package relay_test

import (
	"errors"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/network"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// volumeReply describes the volume of a fakeTarget.
var volumeReply = controlmsg.OpenVolumeReply{Volume: "disk", Size: 1 << 20, BlockSize: 4096,
	MaxQueues: 1, MaxDepth: 4, MaxBufferSize: 1 << 20, Transport: "iwarp"}

// fakeTarget answers open_volume, and nothing else, on control connections that it counts.
type fakeTarget struct {
	address  netip.AddrPort // to listen on
	listener network.Listener
	dialled  atomic.Int64
	opened   atomic.Int64
	reply    controlmsg.OpenVolumeReply
	process  atomic.Uint64
	leaseMs  atomic.Uint32
	confirms atomic.Bool // it confirms that it owns the volume, if asked
	// ended returns a channel whose end ends the connections that exist; nil if nothing does.
	ended func() <-chan struct{}
	// answer returns the answer to the n-th open_volume of a connection, and whether to close the
	// connection after it.
	answer func(n int) (err error, disconnect bool)
}

func startFakeTarget(t *testing.T, answer func(n int) (err error, disconnect bool),
	changes ...func(*fakeTarget)) *fakeTarget {
	t.Helper()
	f := &fakeTarget{address: loopback, answer: answer, reply: volumeReply}
	for _, change := range changes {
		change(f)
	}
	listener, err := network.Kernel{}.Listen(t.Context(), f.address)
	if err != nil {
		t.Fatal(err)
	}
	f.listener = listener
	var running sync.WaitGroup
	running.Go(func() {
		for {
			stream, err := listener.Accept()
			if err != nil {
				return
			}
			f.dialled.Add(1)
			running.Go(func() { f.serve(t, stream) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		running.Wait()
	})
	return f
}

func (f *fakeTarget) serve(t *testing.T, stream network.Stream) {
	s := controlmsg.NewResponder(controlmsg.NewTCPTransport(stream, controlmsg.TCPConfig{}),
		controlmsg.EndpointConfig{Role: controlmsg.RoleTarget, Process: f.process.Load(),
			KeepAlive: controlmsg.DefaultKeepAlive(),
			OnHello: func(_ *controlmsg.Hello, reply *controlmsg.HelloReply) error {
				reply.LeaseMs = f.leaseMs.Load()
				return nil
			}})
	defer s.Close(nil)
	if f.ended != nil {
		ended := f.ended()
		go func() {
			select {
			case <-ended:
				s.Close(status.Errorf(status.NoLock, "another target has taken over"))
			case <-s.Done():
			}
		}()
	}
	for n := 1; ; n++ {
		request, err := s.Next(t.Context())
		if err != nil {
			return
		}
		f.opened.Add(1)
		failure, disconnect := f.answer(n)
		if failure != nil {
			err = s.Fail(t.Context(), request.Correlation, failure)
		} else {
			reply := f.reply
			if m, ok := request.Message.(*controlmsg.OpenVolume); ok {
				reply.Confirmed = m.Confirm && f.confirms.Load()
			}
			err = s.Reply(t.Context(), request.Correlation, &reply)
		}
		if err != nil || disconnect {
			return
		}
	}
}

func startRelayTo(t *testing.T, f *fakeTarget, channel relay.ChannelConfig) *chain {
	t.Helper()
	c := &chain{t: t}
	channel.Targets = []netip.AddrPort{f.listener.Address()}
	c.startRelay(channel)
	return c
}

func (c *chain) link() relay.LinkStatus { return c.relay.Channels()[0].Link }

func (c *chain) awaitReady() {
	c.t.Helper()
	testkit.Eventually(c.t, "the target is ready", func() bool { return c.link().State == relay.LinkReady })
}

// fragileProvider has one device, which can be removed.
type fragileProvider struct {
	rdma.Provider
	mu   sync.Mutex
	lost chan struct{} // closed while there is no device
}

type fragileDevice struct {
	rdma.Device
	lost <-chan struct{}
}

func (d fragileDevice) Lost() <-chan struct{} { return d.lost }

func (p *fragileProvider) Open(address netip.Addr) (rdma.Device, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.lost:
		return nil, status.Errorf(status.NotFound, "no RDMA device has address %v", address)
	default:
	}
	inner, err := p.Provider.Open(address)
	return fragileDevice{inner, p.lost}, err
}

func (p *fragileProvider) remove() { close(p.lost) }

func (p *fragileProvider) add() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost = make(chan struct{})
}

// A relay whose RDMA device is removed, or reset, cannot serve, says so, and serves when the device
// is back.
func TestARelayUsesAnRDMADeviceThatComesBack(t *testing.T) {
	f := startFakeTarget(t, func(int) (error, bool) { return nil, false })
	provider := &fragileProvider{Provider: iwarp.New(iwarp.Options{}), lost: make(chan struct{})}
	c := &chain{t: t, options: chainOptions{rdma: provider}}
	c.startRelay(relay.ChannelConfig{Targets: []netip.AddrPort{f.listener.Address()},
		Reconnect: quickly})
	for range 3 {
		c.awaitReady()
		provider.remove()
		testkit.Eventually(t, "the relay knows that it cannot serve", func() bool {
			s := c.link()
			return s.State == relay.LinkWaiting && errors.Is(s.LastError, status.NotFound)
		})
		provider.add()
	}
	c.awaitReady()
}

// mortalProvider has a device that is replaced by another one without telling.
type mortalProvider struct {
	rdma.Provider
	generation atomic.Int64
}

type mortalDevice struct {
	rdma.Device
	provider *mortalProvider
	born     int64
}

func (p *mortalProvider) Open(address netip.Addr) (rdma.Device, error) {
	device, err := p.Provider.Open(address)
	return mortalDevice{device, p, p.generation.Load()}, err
}

func (d mortalDevice) NewProtectionDomain() (rdma.ProtectionDomain, error) {
	if d.born != d.provider.generation.Load() {
		return nil, status.Errorf(status.Driver, "the device has been removed")
	}
	return d.Device.NewProtectionDomain()
}

func TestAClientIsServedByAnRDMADeviceInPlaceOfOneThatFails(t *testing.T) {
	t.Cleanup(relay.SetDoubtAge(0))
	provider := &mortalProvider{Provider: iwarp.New(iwarp.Options{})}
	c := startChainWith(t, chainOptions{rdma: provider})
	c.openQueue()
	c.connection.Abort()
	provider.generation.Add(1)
	configure := func(epoch uint64) error {
		c.connect()
		defer c.requester.Close(nil)
		requests := c.session()
		m := requests[1].(*controlmsg.ConfigureDataPath)
		m.Epoch = epoch
		if err := c.call(requests[0]); err != nil {
			return err
		}
		return c.call(m)
	}
	if err := configure(2); !errors.Is(err, status.Driver) {
		t.Errorf("the session that finds the device gone: %v", err)
	}
	if err := configure(3); err != nil {
		t.Errorf("the next session: %v", err)
	}
}

func TestATargetThatDisconnectsAtOnceIsNotDialledInALoop(t *testing.T) {
	f := startFakeTarget(t, func(int) (error, bool) { return nil, true })
	c := startRelayTo(t, f, relay.ChannelConfig{
		Reconnect: retry.Policy{FirstPause: time.Hour, LongestPause: time.Hour},
	})
	testkit.Eventually(t, "the relay waits before it tries again", func() bool {
		if f.dialled.Load() > 5 {
			t.Fatal("the target is dialled without a pause")
		}
		s := c.link()
		return s.State == relay.LinkWaiting && time.Until(*s.NextAttempt) > 30*time.Minute
	})
	if s := c.link(); s.Connects != 2 || s.Losses != 2 || s.Attempt != 2 || s.LastError == nil {
		t.Errorf("the link is %+v", s)
	}
}

func TestAShortConnectionCountsAsAnAttempt(t *testing.T) {
	f := startFakeTarget(t, func(int) (error, bool) { return nil, true })
	c := startRelayTo(t, f, relay.ChannelConfig{Reconnect: retry.Policy{
		Attempts: retry.Times(3), FirstPause: testkit.Patience, LongestPause: testkit.Patience,
		Random: func() float64 { return 4 }, // shortens every pause to nothing
	}})
	testkit.Eventually(t, "the relay gives up", func() bool { return c.link().State == relay.LinkGivenUp })
	if got := f.dialled.Load(); got != 4 {
		t.Errorf("the target was dialled %d times", got)
	}
}

func TestALinkThatHasLastedStartsANewSchedule(t *testing.T) {
	f := startFakeTarget(t, func(int) (error, bool) { return nil, true })
	c := startRelayTo(t, f, relay.ChannelConfig{Reconnect: retry.Policy{
		// Every connection lasts longer than this pause.
		Attempts: retry.Times(1), FirstPause: 1, LongestPause: 1,
	}})
	testkit.Eventually(t, "the relay has connected more often than one schedule allows",
		func() bool { return c.link().Connects > 5 })
}

func TestASessionKeepsItsConnectionToTheTarget(t *testing.T) {
	f := startFakeTarget(t, func(int) (error, bool) { return nil, false })
	c := startRelayTo(t, f, relay.ChannelConfig{})
	c.awaitReady()
	c.connect()
	const repetitions = 100
	for range repetitions {
		if err := c.call(&controlmsg.OpenVolume{}); err != nil {
			t.Fatal(err)
		}
	}
	// The link has a connection of its own, and opens the volume once.
	if got := f.dialled.Load(); got != 2 {
		t.Errorf("the target was dialled %d times", got)
	}
	if got := f.opened.Load(); got != 1+repetitions {
		t.Errorf("the target was asked %d times", got)
	}
}

// The rate is tested in pace_internal_test.go.
func TestAClientThatOpensTooOftenIsRejectedByTheRelay(t *testing.T) {
	var linked atomic.Bool
	f := startFakeTarget(t, func(int) (error, bool) {
		if linked.Swap(true) {
			return status.Errorf(status.NotFound, "made up"), false
		}
		return nil, false
	})
	c := startRelayTo(t, f, relay.ChannelConfig{SessionWait: retry.Within(0)})
	c.awaitReady()
	c.connect()
	testkit.Eventually(t, "the relay rejects the client", func() bool {
		err := c.call(&controlmsg.OpenVolume{})
		switch {
		case errors.Is(err, status.Again) && strings.Contains(err.Error(), "too often"):
			return true
		case !errors.Is(err, status.NotFound):
			t.Fatal(err)
		}
		return false
	})
}

func TestTheRelayWaitsAsLongAsTheTargetAsks(t *testing.T) {
	const asked, times = 100 * time.Millisecond, 3
	var postponed atomic.Int64
	f := startFakeTarget(t, func(int) (error, bool) {
		if postponed.Add(1) <= times {
			return controlmsg.Postpone(asked, "too many"), true
		}
		return nil, false
	})
	begun := time.Now()
	c := startRelayTo(t, f, relay.ChannelConfig{SessionWait: retry.Forever(),
		Reconnect: retry.Policy{Attempts: retry.Times(1), FirstPause: 1, LongestPause: 1}})
	c.connect()
	if err := c.call(&controlmsg.OpenVolume{}); err != nil { // which the session waits for
		t.Fatal(err)
	}
	if s := c.link(); s.Postponed != times || s.Failures != 0 || s.Connects != 1 {
		t.Errorf("the link is %+v", s)
	}
	if waited := time.Since(begun); waited < times*asked {
		t.Errorf("the target asked for %v in all, the relay came back after %v", times*asked,
			waited)
	}
}

func TestClientsLearnWhenTheTargetAdmitsSessions(t *testing.T) {
	f := startFakeTarget(t, func(int) (error, bool) {
		return controlmsg.Postpone(time.Minute, "too many"), true
	})
	c := startRelayTo(t, f, relay.ChannelConfig{SessionWait: retry.Within(0)})
	testkit.Eventually(t, "the relay waits", func() bool { return c.link().State == relay.LinkWaiting })
	c.connect()
	err := c.call(&controlmsg.OpenVolume{})
	if after := controlmsg.RetryAfter(err); !errors.Is(err, status.Again) ||
		after < 30*time.Second {
		t.Errorf("the client is told %v: %v", after, err)
	}
}

func TestASessionWaitsAsLongAsTheTargetAsks(t *testing.T) {
	var connections atomic.Int64
	f := startFakeTarget(t, func(int) (error, bool) {
		if connections.Add(1) == 2 { // the session's first
			return controlmsg.Postpone(time.Millisecond, "too many"), true
		}
		return nil, false
	})
	c := startRelayTo(t, f, relay.ChannelConfig{SessionWait: retry.Forever()})
	c.awaitReady()
	c.connect()
	if err := c.call(&controlmsg.OpenVolume{}); err != nil {
		t.Fatal(err)
	}
	if s := c.link(); s.Postponed != 1 || f.dialled.Load() != 3 {
		t.Errorf("dialled %d times, the link is %+v", f.dialled.Load(), s)
	}
}
