// SPDX-License-Identifier: Apache-2.0

// Package relay is the daemon on the DPU. It accepts clients over Comch, performs the control
// handshake with them and, over TCP, with a target, and hands the resulting queues to data-path
// workers.
//
// A Relay serves channels. Each has its own Comch server, targets and sessions. Channels are
// isolated: a failure in one never affects another, although they may share workers.
package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/lease"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// Relay serves channels. Its methods may be called concurrently, except Close.
type Relay struct {
	relayCommon
	log       *zap.Logger
	answering sync.WaitGroup // lessee.Run
	silence   context.CancelFunc

	drainTimeout atomic.Pointer[retry.Bound]
	running      chan struct{} // closed when Run serves the channels
	drained      chan struct{} // closed at the end of the drain of a shutdown

	reporting sync.Mutex // held while OnReady is called, so that the last call has the latest state
	ending    bool       // guarded by reporting: the relay is not ready any more

	reconfiguring chan struct{} // holds an element while Reconfigure runs, which may take long

	hasRun    atomic.Bool // Run has been called
	closeOnce sync.Once
	closed    atomic.Bool // Close has been called
	closeErr  error       // valid after closeOnce

	mu       sync.Mutex                         // guards what follows
	counters map[ChannelID]*datapath.CounterSet // of all channels since the start
	channels []*channel                         // as configured, then removed ones
	serving  context.Context
	serve    sync.WaitGroup // of channels
}

var _ io.Closer = (*Relay)(nil)

// New starts the workers, and attempts to open the devices and the Comch server of each channel. It
// fails if that cannot succeed with this configuration and this build. What else fails, for
// instance because a representor is not there yet, Run tries again. Call Run to serve, and Close to
// release everything.
func New(ctx context.Context, config Config) (*Relay, error) {
	if ctx == nil {
		ctx = context.Background()
	}
	switch {
	case config.Comch == nil:
		return nil, status.Errorf(status.InvalidValue, "start a relay: Config.Comch is nil: it is "+
			"how clients reach the relay, for instance emulated.New(emulated.Options{})")
	case config.RDMA == nil:
		return nil, status.Errorf(status.InvalidValue, "start a relay: Config.RDMA is nil: it is "+
			"how the relay reaches targets, for instance iwarp.New(iwarp.Options{})")
	case config.DataSecurity != controlmsg.DataSecurityOff && config.TLS == nil:
		return nil, status.Errorf(status.BadConfig, "start a relay: Config.DataSecurity is %v, and "+
			"Config.TLS is nil: its certificates are those of the data, too", config.DataSecurity)
	}
	config.setDefaults()
	settings, errs := config.Settings.complete()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	config.Settings = settings
	r := &Relay{
		relayCommon: relayCommon{
			config: config, devices: newRDMADeviceSet(config.RDMA),
			dmaDevices:     newDMADeviceSet(config.DMA),
			clientCounters: datapath.NewClientCounters(config.CountedClients),
			ends:           usualEndTimes,
		},
		log:      config.Logger,
		counters: make(map[ChannelID]*datapath.CounterSet), drained: make(chan struct{}),
		running: make(chan struct{}), reconfiguring: make(chan struct{}, 1),
	}
	r.onReadiness = r.reportReadiness
	r.lessee = lease.NewLessee(config.Clock, r.endDisconnected)
	r.peers = controlmsg.NewPeers()
	answering, silence := context.WithCancel(context.Background())
	r.silence = silence
	r.answering.Go(func() { r.lessee.Run(answering) })
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
		r.channels = append(r.channels, r.newChannel(&r.config.Channels[i], nil))
	}
	errs := make([]error, len(r.channels))
	var opening sync.WaitGroup
	for i, c := range r.channels {
		opening.Go(func() { errs[i] = c.openFirst(ctx) })
	}
	opening.Wait()
	if ctx.Err() != nil || !slices.Contains(errs, nil) {
		return errors.Join(errs...)
	}
	for i, err := range errs {
		if err != nil {
			r.channels[i].failed(err) // the others are worth serving
		}
	}
	return nil
}

func (r *Relay) newChannel(config *ChannelConfig, former []*channel) *channel {
	return newChannel(&r.relayCommon, config, r.countersOf(config.ChannelID), former)
}

func (r *Relay) applyLimits(s *Settings) {
	r.maxSessions.Store(int64(s.MaxSessions))
	r.maxBounced.Store(s.MaxBounceMemory)
	r.drainTimeout.Store(&s.DrainTimeout)
}

// Run serves clients until ctx ends. It then drains all sessions, ends them with a reason, and
// returns. Run may be called once: then it fails with status.BadState, and after Close with
// status.ErrClosed.
func (r *Relay) Run(ctx context.Context) error {
	if r.closed.Load() {
		return fmt.Errorf("run the relay: %w", status.ErrClosed)
	}
	if r.hasRun.Swap(true) {
		return status.Errorf(status.BadState, "run the relay: Run has been called before")
	}
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	r.mu.Lock()
	r.serving = serving
	for _, c := range r.channels {
		r.serveChannel(c)
	}
	r.mu.Unlock()
	close(r.running)
	r.reportReadiness() // no target does for a channel that knows none yet
	<-ctx.Done()
	r.reporting.Lock()
	r.ending = true
	r.config.OnReady(Readiness{Err: errShuttingDown})
	r.reporting.Unlock()
	r.mu.Lock() // no channel is added from now on
	stop()
	r.mu.Unlock()
	r.serve.Wait()
	r.endSessions()
	return nil
}

// serveChannel serves a channel until it is removed or the relay ends. The caller holds r.mu.
func (r *Relay) serveChannel(c *channel) {
	ctx, stop := context.WithCancel(r.serving)
	c.stop = stop
	r.serve.Go(func() {
		defer close(c.served)
		c.run(ctx)
	})
}

// endSessions drains and ends all sessions concurrently, and waits for them.
func (r *Relay) endSessions() {
	ctx, cancel := r.DrainTimeout().Context(context.Background())
	defer cancel()
	channels := r.snapshot()
	var ending sync.WaitGroup
	for _, c := range channels {
		for _, s := range c.openSessions() {
			ending.Go(func() {
				s.cancel(shutdownReason(s.drain(ctx)))
			})
		}
	}
	ending.Wait()
	close(r.drained)
	for _, c := range channels {
		c.running.Wait()
	}
}

func shutdownReason(unfinished int) error {
	if unfinished == 0 {
		return errShuttingDown
	}
	return status.Errorf(status.Shutdown,
		"the relay is shutting down (drain): the target has not responded to %d requests",
		unfinished)
}

// DrainTimeout returns how long Run waits for IOs in flight after its context has ended.
func (r *Relay) DrainTimeout() retry.Bound { return *r.drainTimeout.Load() }

// Drained returns a channel that is closed when Run has stopped waiting for IOs in flight.
func (r *Relay) Drained() <-chan struct{} { return r.drained }

// Close releases everything that New created. Run must have returned. Sessions that could not be
// released so far, because the process or a device was stopped, get a last chance. Close may be
// called again: it waits for the first call, and returns its result.
func (r *Relay) Close() error {
	r.closed.Store(true)
	r.closeOnce.Do(func() { r.closeErr = r.close() })
	return r.closeErr
}

func (r *Relay) close() error {
	r.reconfiguring <- struct{}{}
	defer func() { <-r.reconfiguring }()
	ctx, cancel := context.WithTimeout(context.Background(), r.ends.attempt)
	defer cancel()
	var errs []error
	for _, c := range r.snapshot() {
		errs = append(errs, c.close(ctx))
	}
	if r.pool != nil {
		errs = append(errs, r.pool.Stop())
	}
	r.silence()
	r.answering.Wait()
	return errors.Join(append(errs, r.devices.close(), r.dmaDevices.close())...)
}

// endDisconnected ends the sessions whose clients have gone by now.
func (r *Relay) endDisconnected() {
	now := time.Now()
	for _, c := range r.snapshot() {
		for _, s := range c.openSessions() {
			if s.isDisconnected(now) {
				s.endLease()
				s.cancel(status.Errorf(status.ConnectionReset, "client: the connection has ended"))
			}
		}
	}
}

func (r *Relay) snapshot() []*channel {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.channels)
}

// Drain makes the relay report that it is not ready, and reject new sessions, until Resume. Clients
// that connect get the reason. Open sessions continue; DrainStatus reports how many are left.
func (r *Relay) Drain() {
	now := time.Now()
	if r.draining.CompareAndSwap(nil, &now) {
		r.log.Warn("draining: new sessions are rejected")
		r.reportReadiness()
	}
}

// Resume undoes Drain.
func (r *Relay) Resume() {
	if r.draining.Swap(nil) != nil {
		r.log.Warn("resumed: new sessions are accepted again")
		r.reportReadiness()
	}
}

// countersOf returns the counters of a channel. One that was removed before continues to count.
func (r *Relay) countersOf(id ChannelID) *datapath.CounterSet {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counters[id] == nil {
		r.counters[id] = &datapath.CounterSet{}
	}
	return r.counters[id]
}
