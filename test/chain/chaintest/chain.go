// SPDX-License-Identifier: Apache-2.0

// Package chaintest runs target, relay, and client together, in one process, for tests. RunChannel
// has the tests that a channel passes over any providers.
package chaintest

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/zc-relay/zc-relay/internal/testkit"
	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/dma"
	"github.com/zc-relay/zc-relay/pkg/dma/software"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/rdma/auto"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

// What the volume of a chain is, unless its options say otherwise.
const (
	VolumeName = "disk"
	VolumeSize = 8 << 20
	BlockSize  = 4096
)

// quiet is a keep-alive that never declares a slow peer dead, and sends next to nothing.
var quiet = controlmsg.KeepAliveConfig{Interval: testkit.Patience / 4, DeadAfter: testkit.Patience}

// Parallel lets a test run beside others, unless their chains share providers.
func Parallel(t *testing.T) {
	t.Helper()
	if !areShared {
		t.Parallel()
	}
}

// Chain is a target and a relay, ready for clients.
type Chain struct {
	T        testing.TB
	Log      *zap.Logger
	Loopback netip.AddrPort // where the test's targets listen, with port 0
	Provider comch.Provider
	DMA      dma.Provider
	Volumes  map[string]target.Offer
	Gate     *GateVolume // wraps the volume
	Target   *target.Target
	Relay    *relay.Relay
	channel  relay.ChannelConfig // the relay's only channel

	StopTarget func()
	StopRelay  func()
}

// Options change what Start makes.
type Options struct {
	CRC   bool
	Gated bool // serve Chain.Gate instead of the bare volume
	Spec  string
	// Target, Relay, and Channel change the configurations.
	Target  func(*target.Config)
	Relay   func(*relay.Config)
	Channel func(*relay.ChannelConfig)
	// Comch wraps the relay's provider.
	Comch func(comch.Provider) comch.Provider
}

// New returns a chain without a target and without a relay.
func New(t testing.TB) *Chain {
	t.Helper()
	c := &Chain{T: t, Log: zap.NewNop(), Loopback: testkit.Endpoint(t)}
	if _, benchmark := t.(*testing.B); !benchmark {
		c.Log = logOfFailure(t)
	}
	c.Provider, c.DMA = comchProviders(t, filepath.Join(t.TempDir(), "comch"), c.Log)
	return c
}

// logOfFailure returns a logger whose lines are printed if the test fails, or with -v. Unlike a
// logger of zaptest, it may be used after the end of the test.
func logOfFailure(t testing.TB) *zap.Logger {
	log := &testkit.Output{}
	t.Cleanup(func() {
		if t.Failed() || testing.Verbose() {
			t.Logf("log of target, relay, and client:\n%s", log.String())
		}
	})
	return zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(zap.NewDevelopmentEncoderConfig()),
		zapcore.AddSync(log), zap.InfoLevel))
}

// Start starts a target and a relay with one channel.
func Start(t testing.TB, o Options) *Chain {
	t.Helper()
	c := New(t)
	c.StartTarget(o, c.Loopback)
	t.Cleanup(func() { c.StopTarget() })
	c.StartRelay(o)
	t.Cleanup(func() { c.StopRelay() })
	return c
}

// StartTarget opens the volume and serves it. It sets StopTarget, which stops the target and closes
// the volume.
func (c *Chain) StartTarget(o Options, listen netip.AddrPort) {
	c.T.Helper()
	c.openVolume(o)
	c.StartTargetWith(o, listen, c.Volumes)
}

// StartTargetWith serves volumes that are open.
func (c *Chain) StartTargetWith(
	o Options, listen netip.AddrPort, volumes map[string]target.Offer,
) {
	c.T.Helper()
	c.Volumes = volumes
	config := target.Config{
		RDMA: NewRDMA(o.CRC), Listen: listen, RDMAListen: c.Loopback, Volumes: c.Volumes,
		CPUs:           Unpinned(2),
		ControlTimeout: testkit.Patience, KeepAlive: quiet, Logger: c.Log.Named("target"),
	}
	if o.Target != nil {
		o.Target(&config)
	}
	var err error
	if c.Target, err = target.New(c.Context(), config); err != nil {
		c.T.Fatal(err)
	}
	stop := c.run("target", c.Target.Run)
	c.StopTarget = sync.OnceFunc(func() {
		stop()
		if err := c.Target.Close(); err != nil {
			c.T.Errorf("close target: %v", err)
		}
		for _, e := range c.Volumes {
			if err := e.Volume.Close(c.Context()); err != nil {
				c.T.Errorf("close volume: %v", err)
			}
		}
	})
}

func (c *Chain) openVolume(o Options) {
	c.T.Helper()
	if o.Spec == "" {
		o.Spec = VolumeName + "=memory:8MiB"
	}
	spec, err := volume.ParseSpec(o.Spec, BlockSize)
	if err != nil {
		c.T.Fatal(err)
	}
	v, err := volume.Open(spec)
	if err != nil {
		c.T.Fatal(err)
	}
	c.Gate = &GateVolume{Volume: v}
	c.Volumes = map[string]target.Offer{
		v.Info().Name: {Volume: v, Exclusive: spec.Exclusive},
	}
	if o.Gated {
		c.Volumes[v.Info().Name] = target.Offer{Volume: c.Gate}
	}
}

// StartRelay starts a relay with one channel to the chain's target.
func (c *Chain) StartRelay(o Options) {
	c.T.Helper()
	c.channel = ChannelTo(client.DefaultChannelName, c.Target.Address())
	if o.Channel != nil {
		o.Channel(&c.channel)
	}
	config := relay.Config{RDMA: NewRDMA(o.CRC),
		Settings: relay.Settings{Channels: []relay.ChannelConfig{c.channel}}}
	if o.Relay != nil {
		o.Relay(&config)
	}
	if o.Comch != nil {
		config.Comch = o.Comch(c.Provider)
	}
	c.StartRelayWith(config)
}

// StartRelayWith completes config with what all relays of these tests have in common, and starts a
// relay. It sets StopRelay.
func (c *Chain) StartRelayWith(config relay.Config) {
	c.T.Helper()
	config.CPUs, config.Logger = Unpinned(2), c.Log.Named("relay")
	if config.Comch == nil {
		config.Comch = c.Provider
	}
	config.DMA = c.DMA
	if config.RDMA == nil {
		config.RDMA = NewRDMA(false)
	}
	var err error
	if c.Relay, err = relay.New(c.Context(), config); err != nil {
		c.T.Fatal(err)
	}
	stop := c.run("relay", c.Relay.Run)
	c.StopRelay = sync.OnceFunc(func() {
		stop()
		if err := c.Relay.Close(); err != nil {
			c.T.Errorf("close relay: %v", err)
		}
	})
}

// isolation is that of all channels.
var isolation = relay.Direct

// Stage makes the channels of a test move data through bounce buffers. The test cannot be parallel,
// but its own tests can.
func Stage(t *testing.T) {
	isolation = relay.Staged
	t.Cleanup(func() { isolation = relay.Direct })
}

// comchProviders returns the providers of Comch, and of DMA to the memory of its clients, for a
// test. areShared is set if those of several tests share something that a process has once.
var (
	comchProviders = embedded
	areShared      bool
)

func embedded(_ testing.TB, directory string, _ *zap.Logger) (comch.Provider, dma.Provider) {
	return emulated.New(emulated.Options{Directory: directory}),
		software.New(software.Options{AnyDevice: true, Inline: true})
}

// UseProviders makes the chains of a test have other providers of Comch, and of DMA to the memory
// of its clients, which meet in a directory. Neither the test nor its own tests are parallel.
func UseProviders(t *testing.T, providers func(t testing.TB, directory string, log *zap.Logger) (
	comch.Provider, dma.Provider)) {
	comchProviders, areShared = providers, true
	t.Cleanup(func() { comchProviders, areShared = embedded, false })
}

// ChannelTo returns the configuration of a channel on which nothing times out.
func ChannelTo(name string, target netip.AddrPort) relay.ChannelConfig {
	return relay.ChannelConfig{
		ChannelID: relay.ChannelID{
			Device: emulated.DefaultDevice, Representor: emulated.DefaultRepresentor, Name: name,
		},
		Targets: []netip.AddrPort{target}, Volume: VolumeName, Isolation: isolation,
		SessionWait: retry.Forever(), IOTimeout: retry.Within(testkit.Patience),
		ControlTimeout: testkit.Patience,
		KeepAlive:      quiet,
	}
}

// NewRDMA returns the provider that the flag names, or iwarp if CRCs are to be tested. With auto,
// relay and target use shared memory.
func NewRDMA(crc bool) rdma.Provider {
	options := iwarp.Options{CRC: crc, UserTimeout: testkit.Patience,
		HandshakeTimeout: testkit.Patience}
	if crc || *provider == iwarp.ProviderName {
		return iwarp.New(options)
	}
	return auto.New(options)
}

var provider = flag.String("rdma", iwarp.ProviderName, "RDMA provider: iwarp or auto")

// Unpinned configures n workers that may run on any core.
func Unpinned(n int) []int {
	cpus := make([]int, n)
	for i := range cpus {
		cpus[i] = datapath.NoCPU
	}
	return cpus
}

// run runs a service and returns the function that stops it.
func (c *Chain) run(name string, service func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := service(ctx); err != nil {
			c.T.Errorf("run %s: %v", name, err)
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}

// Context returns a context that ends when patience does.
func (c *Chain) Context() context.Context { return testkit.Context(c.T) }

// Config returns the configuration of a client with synchronous requests only.
func (c *Chain) Config() client.Config {
	return client.Config{
		Provider: c.Provider, Device: emulated.DefaultHostDevice, ControlTimeout: testkit.Patience,
		IOTimeout: testkit.Patience,
		Logger:    c.Log.Named("client"),
	}
}

// Open opens the volume, and closes it when the test ends.
func (c *Chain) Open(config client.Config) *client.Volume {
	c.T.Helper()
	v, err := client.Open(c.Context(), config)
	if err != nil {
		c.T.Fatal(err)
	}
	c.T.Cleanup(func() {
		isOver := v.Err() != nil
		err := v.Close(c.Context())
		if err != nil && !isOver && !client.IsConnectionLost(status.CodeOf(err)) {
			c.T.Errorf("close volume: %v", err)
		}
	})
	return v
}

// Await waits until condition holds.
func (c *Chain) Await(what string, condition func() bool) {
	c.T.Helper()
	testkit.Eventually(c.T, what, condition)
}

// AwaitEnd waits until done, of a volume or a control endpoint, is closed.
func (c *Chain) AwaitEnd(done <-chan struct{}) {
	c.T.Helper()
	testkit.Receive(c.T, "the session has ended", done)
}

// AwaitRelease waits until relay and target have released all sessions of clients.
func (c *Chain) AwaitRelease() {
	c.T.Helper()
	c.Await("the relay has released its sessions", func() bool { return c.Relay.Sessions() == 0 })
	// The relay's own connection, which watches the target, is a session too.
	c.Await("the target has released its sessions", func() bool { return c.Target.Sessions() <= 1 })
}

// AwaitInFlight waits until the target has submitted n requests to the gated volume. It polls
// queues for nothing, because a device may send their requests only then.
func (c *Chain) AwaitInFlight(n int64, queues ...*client.Queue) {
	c.T.Helper()
	c.Await("requests are in flight at the target", func() bool {
		for _, q := range queues {
			q.Poll(nil)
		}
		return c.Gate.Submitted.Load()-c.Gate.completed.Load() >= n
	})
}

// GateVolume holds back completions while the gate is closed, and fails requests on demand.
type GateVolume struct {
	volume.Volume
	Closed    atomic.Bool
	failed    atomic.Uint32 // the status.Code of all requests, unless Success
	Submitted atomic.Int64
	completed atomic.Int64
}

// Memory returns nil, so that reads go through the queues.
func (*GateVolume) Memory() *memory.Region { return nil }

func (v *GateVolume) NewQueue(depth int) (volume.Queue, error) {
	queue, err := v.Volume.NewQueue(depth)
	return &gateQueue{Queue: queue, volume: v}, err
}

type gateQueue struct {
	volume.Queue
	volume *GateVolume
}

func (q *gateQueue) Submit(request *volume.Request) error {
	err := q.Queue.Submit(request)
	if err == nil {
		q.volume.Submitted.Add(1)
	}
	return err
}

func (q *gateQueue) Poll(completed []*volume.Request) int {
	if q.volume.Closed.Load() {
		return 0
	}
	n := q.Queue.Poll(completed)
	q.volume.completed.Add(int64(n))
	if code := status.Code(q.volume.failed.Load()); code != status.Success {
		for _, r := range completed[:n] {
			r.Err = code
		}
	}
	return n
}

// Status returns the status of the channel with the given name, zero if there is none.
func (c *Chain) Status(name string) relay.ChannelStatus {
	c.T.Helper()
	for _, s := range c.Relay.Channels() {
		if s.Name == name {
			return s
		}
	}
	return relay.ChannelStatus{}
}

// AwaitState waits until the channel with the given name is in a state, and returns its status.
func (c *Chain) AwaitState(name string, state relay.LinkState) relay.ChannelStatus {
	c.T.Helper()
	var s relay.ChannelStatus
	c.Await(fmt.Sprintf("channel %s is %v", name, state), func() bool {
		s = c.Status(name)
		return s.Link.State == state
	})
	return s
}

// AwaitListening waits until clients can connect to the first channel.
func (c *Chain) AwaitListening() {
	c.T.Helper()
	c.Await("the channel listens", func() bool {
		s := c.Relay.Channels()[0]
		return !s.Retiring && s.Address != ""
	})
}

// QueueConfig returns the configuration of a client with one queue and no synchronous requests.
func (c *Chain) QueueConfig(depth int) client.Config {
	config := c.Config()
	config.Queues, config.Depth, config.BufferSize, config.SyncDepth = 1, depth, BlockSize, -1
	return config
}

// Reconnecting returns a policy that tries for as long as a test may take.
func Reconnecting() *retry.Policy {
	return &retry.Policy{Total: retry.Within(testkit.Patience), FirstPause: 5 * time.Millisecond,
		LongestPause: 50 * time.Millisecond}
}

// OnFile returns the options of a chain whose volume is a file, which survives its target.
func OnFile(t *testing.T) Options {
	return Options{Spec: VolumeName + "=file:" + t.TempDir() + "/disk.img,size=8MiB", Gated: true}
}

// RestartTarget stops the target and starts another in its place.
func (c *Chain) RestartTarget(o Options) {
	c.T.Helper()
	address := c.Target.Address()
	c.StopTarget()
	c.StartTarget(o, address)
}
