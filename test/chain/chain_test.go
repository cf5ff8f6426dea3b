// Package chain tests target, relay, and client together, in one process, over the embedded
// providers.
//
// The tests wait for conditions rather than for times. Every timeout of the product is so long that
// even a slow machine stays below it; a test whose subject is a timeout sets its own.
package chain

import (
	"context"
	"flag"
	"net/netip"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
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

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	volumeName = "disk"
	volumeSize = 8 << 20
	blockSize  = 4096
)

// quiet is a keep-alive that never declares a slow peer dead, and sends next to nothing.
var quiet = controlmsg.KeepAliveConfig{Interval: testkit.Patience / 4, DeadAfter: testkit.Patience}

// parallel lets a test run beside others, unless its chains share the one emulation of libdoca that
// a process has.
func parallel(t *testing.T) {
	t.Helper()
	if !sharesEmulation {
		t.Parallel()
	}
}

// chain is a target and a relay, ready for clients.
type chain struct {
	t        testing.TB
	log      *zap.Logger
	loopback netip.AddrPort // where the test's targets listen, with port 0
	provider comch.Provider
	dma      dma.Provider
	volumes  map[string]target.Export
	gate     *gateVolume // wraps the volume
	target   *target.Target
	relay    *relay.Relay
	channel  relay.ChannelConfig // the relay's only channel

	stopTarget func()
	stopRelay  func()
}

// options change what start makes.
type options struct {
	crc   bool
	gated bool // serve chain.gate instead of the bare volume
	spec  string
	// target, relay, and channel change the configurations.
	target  func(*target.Config)
	relay   func(*relay.Config)
	channel func(*relay.ChannelConfig)
	// comch wraps the relay's provider.
	comch func(comch.Provider) comch.Provider
}

// newChain returns a chain without a target and without a relay.
func newChain(t testing.TB) *chain {
	t.Helper()
	c := &chain{t: t, log: zap.NewNop(), loopback: testkit.Endpoint(t)}
	if _, benchmark := t.(*testing.B); !benchmark {
		c.log = logOfFailure(t)
	}
	c.provider, c.dma = comchProviders(t, filepath.Join(t.TempDir(), "comch"), c.log)
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

// start starts a target and a relay with one channel.
func start(t testing.TB, o options) *chain {
	t.Helper()
	c := newChain(t)
	c.startTarget(o, c.loopback)
	t.Cleanup(func() { c.stopTarget() })
	c.startRelay(o)
	t.Cleanup(func() { c.stopRelay() })
	return c
}

// startTarget opens the volume and serves it. It sets stopTarget, which stops the target and closes
// the volume.
func (c *chain) startTarget(o options, listen netip.AddrPort) {
	c.t.Helper()
	c.openVolume(o)
	c.startTargetWith(o, listen, c.volumes)
}

// startTargetWith serves volumes that are open.
func (c *chain) startTargetWith(
	o options, listen netip.AddrPort, volumes map[string]target.Export,
) {
	c.t.Helper()
	c.volumes = volumes
	config := target.Config{
		RDMA: newRDMA(o.crc), Listen: listen, RDMAListen: c.loopback, Volumes: c.volumes,
		CPUs:           unpinned(2),
		ControlTimeout: testkit.Patience, KeepAlive: quiet, Logger: c.log.Named("target"),
	}
	if o.target != nil {
		o.target(&config)
	}
	var err error
	if c.target, err = target.New(c.context(), config); err != nil {
		c.t.Fatal(err)
	}
	stop := c.run("target", c.target.Run)
	c.stopTarget = sync.OnceFunc(func() {
		stop()
		if err := c.target.Close(); err != nil {
			c.t.Errorf("close target: %v", err)
		}
		for _, e := range c.volumes {
			if err := e.Volume.Close(c.context()); err != nil {
				c.t.Errorf("close volume: %v", err)
			}
		}
	})
}

func (c *chain) openVolume(o options) {
	c.t.Helper()
	if o.spec == "" {
		o.spec = volumeName + "=memory:8MiB"
	}
	spec, err := volume.ParseSpec(o.spec, blockSize)
	if err != nil {
		c.t.Fatal(err)
	}
	v, err := volume.Open(spec)
	if err != nil {
		c.t.Fatal(err)
	}
	c.gate = &gateVolume{Volume: v}
	c.volumes = map[string]target.Export{
		v.Info().Name: {Volume: v, Exclusive: spec.Exclusive},
	}
	if o.gated {
		c.volumes[v.Info().Name] = target.Export{Volume: c.gate}
	}
}

// startRelay starts a relay with one channel to the chain's target.
func (c *chain) startRelay(o options) {
	c.t.Helper()
	c.channel = channelTo(client.DefaultChannelName, c.target.Address())
	if o.channel != nil {
		o.channel(&c.channel)
	}
	config := relay.Config{RDMA: newRDMA(o.crc),
		Settings: relay.Settings{Channels: []relay.ChannelConfig{c.channel}}}
	if o.relay != nil {
		o.relay(&config)
	}
	if o.comch != nil {
		config.Comch = o.comch(c.provider)
	}
	c.startRelayWith(config)
}

// startRelayWith completes config with what all relays of these tests have in common, and starts a
// relay. It sets stopRelay.
func (c *chain) startRelayWith(config relay.Config) {
	c.t.Helper()
	config.CPUs, config.Logger = unpinned(2), c.log.Named("relay")
	if config.Comch == nil {
		config.Comch = c.provider
	}
	config.DMA = c.dma
	if config.RDMA == nil {
		config.RDMA = newRDMA(false)
	}
	var err error
	if c.relay, err = relay.New(c.context(), config); err != nil {
		c.t.Fatal(err)
	}
	stop := c.run("relay", c.relay.Run)
	c.stopRelay = sync.OnceFunc(func() {
		stop()
		if err := c.relay.Close(); err != nil {
			c.t.Errorf("close relay: %v", err)
		}
	})
}

// isolation is that of all channels. A test that is not parallel may change it, and comchProviders,
// for its own tests.
var isolation = relay.Direct

// comchProviders returns the providers of Comch, and of DMA to the memory of its clients, for a
// test.
var comchProviders = embedded

// sharesEmulation is set while comchProviders are those of libdoca.
var sharesEmulation bool

func embedded(_ testing.TB, directory string, _ *zap.Logger) (comch.Provider, dma.Provider) {
	return emulated.New(emulated.Options{Directory: directory}),
		software.New(software.Options{AnyDevice: true, Inline: true})
}

// channelTo returns the configuration of a channel on which nothing times out.
func channelTo(name string, target netip.AddrPort) relay.ChannelConfig {
	return relay.ChannelConfig{
		ChannelID: relay.ChannelID{
			Device: emulated.DefaultDevice, Representor: emulated.DefaultRepresentor, Name: name,
		},
		Targets: []netip.AddrPort{target}, Volume: volumeName, Isolation: isolation,
		SessionWait: retry.Forever(), IOTimeout: retry.Within(testkit.Patience),
		ControlTimeout: testkit.Patience,
		KeepAlive:      quiet,
	}
}

// newRDMA returns the provider that the flag names, or iwarp if CRCs are to be tested. With auto,
// relay and target use shared memory.
func newRDMA(crc bool) rdma.Provider {
	options := iwarp.Options{CRC: crc, UserTimeout: testkit.Patience,
		HandshakeTimeout: testkit.Patience}
	if crc || *provider == iwarp.ProviderName {
		return iwarp.New(options)
	}
	return auto.New(options)
}

var provider = flag.String("rdma", iwarp.ProviderName, "RDMA provider: iwarp or auto")

// unpinned configures n workers that may run on any core.
func unpinned(n int) []int {
	cpus := make([]int, n)
	for i := range cpus {
		cpus[i] = datapath.NoCPU
	}
	return cpus
}

// run runs a service and returns the function that stops it.
func (c *chain) run(name string, service func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := service(ctx); err != nil {
			c.t.Errorf("run %s: %v", name, err)
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}

func (c *chain) context() context.Context { return testkit.Context(c.t) }

// config returns the configuration of a client with synchronous requests only.
func (c *chain) config() client.Config {
	return client.Config{
		Provider: c.provider, Device: emulated.DefaultHostDevice, ControlTimeout: testkit.Patience,
		IOTimeout: testkit.Patience,
		Logger:    c.log.Named("client"),
	}
}

// open opens the volume, and closes it when the test ends.
func (c *chain) open(config client.Config) *client.Volume {
	c.t.Helper()
	v, err := client.Open(c.context(), config)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		if err := v.Close(c.context()); err != nil && v.Err() == nil {
			c.t.Errorf("close volume: %v", err)
		}
	})
	return v
}

// await waits until condition holds.
func (c *chain) await(what string, condition func() bool) {
	c.t.Helper()
	testkit.Eventually(c.t, what, condition)
}

// awaitEnd waits until done, of a volume or a control endpoint, is closed.
func (c *chain) awaitEnd(done <-chan struct{}) {
	c.t.Helper()
	testkit.Receive(c.t, "the session has ended", done)
}

// awaitRelease waits until relay and target have released all sessions of clients.
func (c *chain) awaitRelease() {
	c.t.Helper()
	c.await("the relay has released its sessions", func() bool { return c.relay.Sessions() == 0 })
	// The relay's own connection, which watches the target, is a session too.
	c.await("the target has released its sessions", func() bool { return c.target.Sessions() <= 1 })
}

// awaitInFlight waits until the target has submitted n requests to the gated volume. It polls
// queues for nothing, because a device may send their requests only then.
func (c *chain) awaitInFlight(n int64, queues ...*client.Queue) {
	c.t.Helper()
	c.await("requests are in flight at the target", func() bool {
		for _, q := range queues {
			q.Poll(nil)
		}
		return c.gate.submitted.Load()-c.gate.completed.Load() >= n
	})
}

// gateVolume holds back completions while the gate is closed, and fails requests on demand.
type gateVolume struct {
	volume.Volume
	closed    atomic.Bool
	failed    atomic.Uint32 // the status.Code of all requests, unless Success
	submitted atomic.Int64
	completed atomic.Int64
}

// Memory returns nil, so that reads go through the queues.
func (*gateVolume) Memory() *memory.Region { return nil }

func (v *gateVolume) NewQueue(depth int) (volume.Queue, error) {
	queue, err := v.Volume.NewQueue(depth)
	return &gateQueue{Queue: queue, volume: v}, err
}

type gateQueue struct {
	volume.Queue
	volume *gateVolume
}

func (q *gateQueue) Submit(request *volume.Request) error {
	err := q.Queue.Submit(request)
	if err == nil {
		q.volume.submitted.Add(1)
	}
	return err
}

func (q *gateQueue) Poll(completed []*volume.Request) int {
	if q.volume.closed.Load() {
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
