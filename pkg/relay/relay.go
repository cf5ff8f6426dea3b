// Package relay is the daemon on the DPU: it accepts clients over Comch, goes
// through the control handshake with them and with a target over TCP, and
// gives the queues that result to data-path workers.
//
// A Relay serves channels, each of which has its Comch server, its target and
// its sessions. What one of them does or suffers is none of the others'
// business, except that they may share workers.
package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/mutualtls"
	"github.com/zc-relay/zc-relay/pkg/progress"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Defaults of Config.
const (
	DefaultDrainTimeout     = 10 * time.Second
	DefaultMaxSessionsInAll = 1024
)

// Config says what a relay serves. Comch, RDMA, Channels and, unless each
// channel has its own, CPUs are required.
type Config struct {
	Comch comch.Provider
	RDMA  rdma.Provider
	// CPUs has an element for each worker that channels share: the core to
	// pin it to, or datapath.NoCPU.
	CPUs   []int
	Policy progress.Policy
	// TLS secures the control connections to targets. They are in plain text
	// if TLS is nil.
	TLS *mutualtls.Credentials
	// Software names the program to clients and targets.
	Software string
	Logger   *zap.Logger
	// OnReady is told whether any channel can serve new sessions, and if not
	// why. It may be nil.
	OnReady func(err error)
	// Settings are those to begin with.
	Settings
}

// Settings are the part of a configuration that Reconfigure can change. Zero
// values mean the defaults.
type Settings struct {
	Channels []ChannelConfig
	// MaxSessions bounds the concurrent sessions of all channels together.
	MaxSessions int
	// DrainTimeout is how long IOs in flight are waited for at shutdown;
	// negative is no wait.
	DrainTimeout time.Duration
}

func (c *Config) setDefaults() {
	c.Software = cmp.Or(c.Software, "zc-relay")
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	if c.OnReady == nil {
		c.OnReady = func(error) {}
	}
}

// complete returns s with the defaults, or what is wrong with it.
func (s Settings) complete() (Settings, error) {
	s.MaxSessions = cmp.Or(s.MaxSessions, DefaultMaxSessionsInAll)
	s.DrainTimeout = cmp.Or(s.DrainTimeout, DefaultDrainTimeout)
	channels := make([]ChannelConfig, len(s.Channels))
	seen := make(map[ChannelID]bool)
	for i, c := range s.Channels {
		c.setDefaults()
		if err := c.validate(); err != nil {
			return s, err
		}
		if seen[c.ChannelID] {
			return s, status.Errorf(status.AlreadyExist, "channel %v is configured twice", c.ChannelID)
		}
		seen[c.ChannelID] = true
		channels[i] = c
	}
	s.Channels = channels
	return s, nil
}

var errShuttingDown = status.Errorf(status.Shutdown, "the relay is shutting down (drain)")

// Relay serves channels.
type Relay struct {
	config  Config
	log     *zap.Logger
	devices *deviceSet
	pool    *datapath.Pool // shared; nil without CPUs
	ready   readiness

	maxSessions  atomic.Int64
	drainTimeout atomic.Int64
	sessionID    atomic.Uint64
	sessionCount atomic.Int64
	draining     atomic.Pointer[time.Time] // since then; nil if not

	mu       sync.Mutex                         // guards what follows
	counters map[ChannelID]*datapath.CounterSet // of all channels there have been
	channels []*channel                         // in the order of the configuration, then those that are being removed
	serving  context.Context
	serve    sync.WaitGroup // of channels
}

// New starts the workers and the Comch servers. Run serves; Close releases.
func New(ctx context.Context, config Config) (*Relay, error) {
	config.setDefaults()
	settings, err := config.Settings.complete()
	if err != nil {
		return nil, err
	}
	config.Settings = settings
	r := &Relay{config: config, log: config.Logger, devices: newDeviceSet(config.RDMA)}
	r.ready.tell = config.OnReady
	if err := r.start(ctx); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *Relay) start(ctx context.Context) error {
	r.applyLimits(&r.config.Settings)
	var err error
	if len(r.config.CPUs) > 0 {
		if r.pool, err = datapath.StartPool(r.config.CPUs, r.config.Policy); err != nil {
			return err
		}
	}
	for i := range r.config.Channels {
		c, err := r.newChannel(ctx, &r.config.Channels[i])
		if err != nil {
			return err
		}
		r.channels = append(r.channels, c)
	}
	return nil
}

func (r *Relay) applyLimits(s *Settings) {
	r.maxSessions.Store(int64(s.MaxSessions))
	r.drainTimeout.Store(int64(s.DrainTimeout))
}

// Run serves clients until ctx ends, then lets IOs in flight run out, ends
// all sessions with a reason, and returns.
func (r *Relay) Run(ctx context.Context) error {
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	r.mu.Lock()
	r.serving = serving
	for _, c := range r.channels {
		r.serveChannel(c)
	}
	r.mu.Unlock()
	<-ctx.Done()
	r.ready.shutDown()
	r.mu.Lock() // no channel is added from now on
	stop()
	r.mu.Unlock()
	r.serve.Wait()
	r.endSessions()
	return nil
}

// serveChannel serves a channel until it is removed or the relay ends. The
// relay must be locked.
func (r *Relay) serveChannel(c *channel) {
	ctx, retire := context.WithCancel(r.serving)
	c.retire = retire
	r.serve.Go(func() {
		defer close(c.served)
		c.run(ctx)
	})
}

// endSessions drains all sessions at the same time, tells them to end, and
// waits for that.
func (r *Relay) endSessions() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(r.drainTimeout.Load()))
	defer cancel()
	channels := r.snapshot()
	var ending sync.WaitGroup
	for _, c := range channels {
		for _, s := range c.openSessions() {
			ending.Go(func() {
				s.drain(ctx)
				s.cancel(shutdownReason(s.inFlight()))
			})
		}
	}
	ending.Wait()
	for _, c := range channels {
		c.running.Wait()
	}
}

// shutdownReason is what a client is told whose session ends with the relay.
func shutdownReason(unfinished int) error {
	if unfinished == 0 {
		return errShuttingDown
	}
	return status.Errorf(status.Shutdown, "the relay is shutting down (drain), without an answer of the target to %d requests", unfinished)
}

// DrainTimeout is how long requests in flight may take to run out when Run is
// to end.
func (r *Relay) DrainTimeout() time.Duration { return max(0, time.Duration(r.drainTimeout.Load())) }

// Close releases what New made. Run must have returned.
func (r *Relay) Close() error {
	var errs []error
	for _, c := range r.snapshot() {
		errs = append(errs, c.close())
	}
	if r.pool != nil {
		errs = append(errs, r.pool.Stop())
	}
	return errors.Join(append(errs, r.devices.close())...)
}

// snapshot is the channels of now.
func (r *Relay) snapshot() []*channel {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*channel(nil), r.channels...)
}

// Workers returns the data-path workers, shared and the channels' own, for
// whoever collects metrics.
func (r *Relay) Workers() []*datapath.Worker {
	var workers []*datapath.Worker
	if r.pool != nil {
		workers = append(workers, r.pool.Workers()...)
	}
	for _, c := range r.snapshot() {
		if c.ownPool != nil {
			workers = append(workers, c.ownPool.Workers()...)
		}
	}
	return workers
}

// Sessions is how many clients are connected now.
func (r *Relay) Sessions() int { return int(r.sessionCount.Load()) }

// SessionsTotal is how many clients have connected so far.
func (r *Relay) SessionsTotal() uint64 { return r.sessionID.Load() }

// newChannel makes a channel with its workers and its Comch server. The relay
// must be locked once it serves.
func (r *Relay) newChannel(ctx context.Context, config *ChannelConfig) (*channel, error) {
	c := newChannel(r, config)
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("channel %v: %w", config.ChannelID, err), c.close())
	}
	return c, nil
}

// countersOf returns what the queues of a channel count in. It outlives the
// channel, so that counts go on when a channel is removed and added again. The
// relay must be locked once it serves.
func (r *Relay) countersOf(id ChannelID) *datapath.CounterSet {
	if r.counters == nil {
		r.counters = make(map[ChannelID]*datapath.CounterSet)
	}
	if r.counters[id] == nil {
		r.counters[id] = &datapath.CounterSet{}
	}
	return r.counters[id]
}
