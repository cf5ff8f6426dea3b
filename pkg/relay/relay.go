// Package relay is the daemon on the DPU: it accepts clients over Comch, goes
// through the control handshake with them and with a target over TCP, and
// gives the queues that result to data-path workers.
//
// A Relay serves channels, each of which has its Comch server, its target and
// its sessions. What one of them does or suffers is none of the others'
// business, except that they may share workers.

package relay

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/status"
)

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

var errShuttingDown = status.Errorf(status.Shutdown, "the relay is shutting down (drain)")

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

var errDraining = status.Errorf(status.Shutdown, "the relay is being drained: it takes no new sessions")

// Drain makes the relay take no new sessions, and not ready, until Resume.
// Clients that connect are told why. Open sessions go on; DrainStatus tells
// when they have ended.
func (r *Relay) Drain() {
	now := time.Now()
	if r.draining.CompareAndSwap(nil, &now) {
		r.log.Warn("draining: no new sessions are taken")
		r.tellReadiness()
	}
}

// Resume ends what Drain began.
func (r *Relay) Resume() {
	if r.draining.Swap(nil) != nil {
		r.log.Warn("new sessions are taken again")
		r.tellReadiness()
	}
}

// DrainStatus is how far a relay has been drained.
type DrainStatus struct {
	// Draining means that no new sessions are taken, since Since.
	Draining bool
	Since    time.Time
	// Sessions are those that are still open.
	Sessions int
}

// DrainStatus tells how far the relay has been drained.
func (r *Relay) DrainStatus() DrainStatus {
	s := DrainStatus{Sessions: r.Sessions()}
	if since := r.draining.Load(); since != nil {
		s.Draining, s.Since = true, *since
	}
	return s
}

// admit counts a new session, unless the relay takes none.
func (r *Relay) admit() error {
	if r.draining.Load() != nil {
		return errDraining
	}
	if most := r.maxSessions.Load(); r.sessionCount.Add(1) > most {
		r.sessionCount.Add(-1)
		return status.Errorf(status.Full, "the relay has its maximum of %d sessions", most)
	}
	return nil
}

// readiness tells the program whether any channel can serve new sessions.
type readiness struct {
	mu    sync.Mutex // held while telling, so that the last word is the latest
	ended bool
	tell  func(error)
}

// shutDown makes the relay not ready for good.
func (r *readiness) shutDown() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	r.tell(errShuttingDown)
}

// tellReadiness is called whenever a link to a target has changed.
func (r *Relay) tellReadiness() {
	r.ready.mu.Lock()
	defer r.ready.mu.Unlock()
	if r.ready.ended {
		return
	}
	r.ready.tell(r.unreadiness())
}

// unreadiness is nil if any channel can serve new sessions, and otherwise why
// the first one cannot.
func (r *Relay) unreadiness() error {
	if r.draining.Load() != nil {
		return errDraining
	}
	var first error
	for _, c := range r.snapshot() {
		if c.isRetiring() {
			continue
		}
		s, _ := c.link.snapshot()
		if s.State == LinkReady {
			return nil
		}
		if first == nil {
			first = c.link.unavailable(&s)
		}
	}
	if first == nil {
		return status.Errorf(status.NotFound, "no channel is configured")
	}
	return first
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
