// Package chain tests target, relay and client together, in one process, over
// the embedded providers.
package chain

import (
	"context"
	"net/netip"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/zc-relay/zc-relay/pkg/client"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/comch/emulated"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma/iwarp"
	"github.com/zc-relay/zc-relay/pkg/relay"
	"github.com/zc-relay/zc-relay/pkg/status"
	"github.com/zc-relay/zc-relay/pkg/target"
	"github.com/zc-relay/zc-relay/pkg/volume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testTimeout bounds every wait; it is only reached by a test that fails.
const testTimeout = 30 * time.Second

const (
	volumeName = "disk"
	volumeSize = 8 << 20
	blockSize  = 4096
)

var loopback = netip.MustParseAddrPort("127.0.0.1:0")

// chain is a target and a relay, ready for clients.
type chain struct {
	t        testing.TB
	provider comch.Provider
	volumes  map[string]volume.Volume
	gate     *gateVolume // in front of the volume
	target   *target.Target
	relay    *relay.Relay
	log      *zap.Logger

	stopTarget func()
	stopRelay  func()
}

// options change what start makes.
type options struct {
	crc    bool
	gated  bool // requests go through chain.gate
	spec   string
	target func(*target.Config)
	relay  func(*relay.Config)
	// channel changes the relay's only channel.
	channel func(*relay.ChannelConfig)
}

func workers(n int) []int {
	cpus := make([]int, n)
	for i := range cpus {
		cpus[i] = datapath.NoCPU
	}
	return cpus
}

func start(t testing.TB, o options) *chain {
	t.Helper()
	c := &chain{t: t, provider: emulated.New(emulated.Options{Directory: filepath.Join(t.TempDir(), "comch")})}
	c.log = zap.NewNop()
	if testing.Verbose() {
		c.log = zaptest.NewLogger(t, zaptest.Level(zap.InfoLevel))
	}
	c.startTarget(o, loopback)
	c.startRelay(o)
	t.Cleanup(func() {
		c.stopRelay()
		c.stopTarget()
	})
	return c
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
	c.volumes = map[string]volume.Volume{v.Info().Name: v}
	if o.gated {
		c.volumes[v.Info().Name] = c.gate
	}
}

func (c *chain) startTarget(o options, listen netip.AddrPort) {
	c.t.Helper()
	c.openVolume(o)
	config := target.Config{
		RDMA: iwarp.New(iwarp.Options{CRC: o.crc}), Listen: listen, RDMAListen: loopback,
		Volumes: c.volumes, CPUs: workers(2), Logger: c.log.Named("target"),
	}
	if o.target != nil {
		o.target(&config)
	}
	var err error
	if c.target, err = target.New(c.context(), config); err != nil {
		c.t.Fatal(err)
	}
	run := c.run("target", c.target.Run)
	c.stopTarget = sync.OnceFunc(func() {
		run()
		if err := c.target.Close(); err != nil {
			c.t.Errorf("close target: %v", err)
		}
		for _, v := range c.volumes {
			if err := v.Close(c.context()); err != nil {
				c.t.Errorf("close volume: %v", err)
			}
		}
	})
}

func (c *chain) startRelay(o options) {
	c.t.Helper()
	channel := relay.ChannelConfig{
		ChannelID: relay.ChannelID{Device: emulated.DefaultDevice, Representor: emulated.DefaultRepresentor, Name: client.DefaultChannelName},
		Target:    c.target.Address(), Volume: volumeName,
	}
	if o.channel != nil {
		o.channel(&channel)
	}
	config := relay.Config{
		Comch: c.provider, RDMA: iwarp.New(iwarp.Options{CRC: o.crc}), CPUs: workers(2), Logger: c.log.Named("relay"),
		Settings: relay.Settings{Channels: []relay.ChannelConfig{channel}},
	}
	if o.relay != nil {
		o.relay(&config)
	}
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

// run runs a service and returns what stops it.
func (c *chain) run(name string, service func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() {
		if err := service(ctx); err != nil {
			c.t.Errorf("run %s: %v", name, err)
		}
	})
	return func() {
		cancel()
		ended.Wait()
	}
}

func (c *chain) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	c.t.Cleanup(cancel)
	return ctx
}

func (c *chain) config() client.Config {
	return client.Config{
		Provider: c.provider, Device: emulated.DefaultHostDevice, ControlTimeout: testTimeout,
		Logger: c.log.Named("client"),
	}
}

// open opens the volume and closes it when the test ends.
func (c *chain) open(config client.Config) *client.Volume {
	c.t.Helper()
	v, err := client.Open(c.context(), config)
	if err != nil {
		c.t.Fatal(err)
	}
	closeVolume := sync.OnceFunc(func() {
		if err := v.Close(c.context()); err != nil && v.Err() == nil {
			c.t.Errorf("close volume: %v", err)
		}
	})
	c.t.Cleanup(closeVolume)
	return v
}

// await waits until condition holds.
func (c *chain) await(what string, condition func() bool) {
	c.t.Helper()
	deadline := time.Now().Add(testTimeout)
	for !condition() {
		if time.Now().After(deadline) {
			c.t.Fatalf("timed out: %s; channels %+v", what, c.relay.Channels())
		}
		time.Sleep(time.Millisecond)
	}
}

// gateVolume holds back what its queues have done while the gate is closed,
// and fails requests if told to.
type gateVolume struct {
	volume.Volume
	closed atomic.Bool
	failed atomic.Uint32 // a status.Code
}

// Memory keeps reads from going around the queues.
func (*gateVolume) Memory() *memory.Region { return nil }

func (v *gateVolume) NewQueue(depth int) (volume.Queue, error) {
	queue, err := v.Volume.NewQueue(depth)
	return &gateQueue{Queue: queue, volume: v}, err
}

type gateQueue struct {
	volume.Queue
	volume *gateVolume
}

func (q *gateQueue) Poll(completed []*volume.Request) int {
	if q.volume.closed.Load() {
		return 0
	}
	n := q.Queue.Poll(completed)
	if code := status.Code(q.volume.failed.Load()); code != status.Success {
		for _, r := range completed[:n] {
			r.Err = code
		}
	}
	return n
}
