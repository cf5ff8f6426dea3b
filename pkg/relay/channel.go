package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/devicecall"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/controlmsg"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/epoch"
	"github.com/zc-relay/zc-relay/pkg/memory"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/relay/internal/targets"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// channel is a Comch service with its targets and its sessions.
type channel struct {
	relay *Relay
	id    ChannelID
	log   *zap.Logger
	// settings are replaced as a whole. A session keeps the settings that it started with.
	settings atomic.Pointer[ChannelConfig]
	applying sync.Mutex // held while settings and targets change together
	targets  *targets.Set
	workers  *datapath.Pool // nil until the first attempt to open the channel
	ownPool  *datapath.Pool // nil if the relay's workers serve the channel; guarded by mu
	stop     context.CancelFunc
	unlisted chan struct{} // closed when the channel no longer holds its name
	served   chan struct{} // closed when run has returned
	former   []*channel    // removed channels of the same id, until none holds the name

	counters *datapath.CounterSet
	throttle datapath.Throttle
	exported atomic.Int64                  // bytes of client memory
	own      atomic.Pointer[memory.Device] // the Comch device; nil until it is known
	proven   atomic.Pointer[provenPath]
	path     atomic.Pointer[takenPath] // nil until a session has taken one
	bounced  atomic.Int64              // bytes of bounce buffers
	// A client exports the same memory again when it reconnects. Before that, the target must have
	// lost the access that former sessions gave it.
	clients  *epoch.Registry
	dials    *retry.Pace // connections of sessions to the target
	accepted atomic.Uint64
	rejected atomic.Uint64
	running  sync.WaitGroup // sessions
	// late holds the sessions whose release is tried again, until lateContext ends.
	late        sync.WaitGroup
	lateContext context.Context
	stopLate    context.CancelFunc
	linking     sync.WaitGroup  // links to the targets
	links       context.Context // of these
	stopLinks   context.CancelCauseFunc

	opening  devicecall.Step // an attempt to open the channel, one at a time
	checking devicecall.Step // of the devices in other settings
	schedule *retry.Schedule // of these; nil after success
	changed  chan struct{}   // has an element when the settings have changed

	mu        sync.Mutex // guards what follows
	listening ListenStatus
	server    comch.Server
	closed    bool                    // no server is needed any more
	suspend   context.CancelCauseFunc // stops accepting clients; nil until it has begun
	// maxClients is how many clients the server's device supports.
	maxClients int
	sessions   map[*session]struct{}
	removed    bool // from the configuration
}

// newChannel creates a channel. former are the removed channels of the same id.
func (r *Relay) newChannel(config *ChannelConfig, former []*channel) *channel {
	id := config.ChannelID
	c := &channel{
		relay: r, id: id, counters: r.countersOf(id),
		unlisted: make(chan struct{}), served: make(chan struct{}), former: former,
		sessions: make(map[*session]struct{}),
		clients:  epoch.NewRegistry(epoch.Config{Restart: true}),
		dials:    retry.NewPace(channelDialInterval),
		changed:  make(chan struct{}, 1),

		listening: ListenStatus{State: ChannelOpening, Since: time.Now()},
	}
	if len(former) > 0 {
		c.clients = former[0].clients // their sessions and the new ones may be the same clients'
	}
	c.lateContext, c.stopLate = context.WithCancel(context.Background())
	c.links, c.stopLinks = context.WithCancelCause(context.Background())
	c.log = r.log.With(zap.String("channel", id.Name), zap.String("representor", id.Representor))
	c.settings.Store(config)
	c.throttle.SetLimits(config.QoS.Channel)
	c.targets = targets.New(&targets.Config{
		Channel: id.String(), Network: r.config.Network, TLS: r.config.TLS,
		HookTransport: r.config.HookTransport, Software: r.config.Software, Lessee: r.lessee,
		Device: r.rdmaDevice, Logger: c.log, OnChange: r.reportReadiness,
	}, c.targetSettings(config))
	return c
}

// targetSettings returns the part of the settings that concerns targets.
func (c *channel) targetSettings(config *ChannelConfig) *targets.Settings {
	settings := config.targetSettings()
	settings.CheckDevice = func(device rdma.Device) error {
		_, err := c.memoryPaths(config, device)
		return err
	}
	return settings
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

// startWorkers starts the workers of a channel that has its own, unless they run.
func (c *channel) startWorkers(config *ChannelConfig) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.workers != nil:
		return nil
	case c.closed:
		return status.Errorf(status.Shutdown, "the channel is closed")
	case len(config.CPUs) > 0:
		pool, err := datapath.StartPool(config.CPUs, c.relay.config.Policy)
		if err != nil {
			return err
		}
		c.ownPool, c.workers = pool, pool
	case c.relay.pool == nil:
		return status.Errorf(status.InvalidValue,
			"no workers: neither the channel nor the relay has CPUs")
	default:
		c.workers = c.relay.pool
	}
	return nil
}

// ownWorkers returns the workers that serve this channel only.
func (c *channel) ownWorkers() []*datapath.Worker {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ownPool == nil {
		return nil
	}
	return c.ownPool.Workers()
}

// openDevice opens the RDMA devices that lead to the targets, if there are routes. Otherwise a
// device is opened together with the connection to a target.
func (c *channel) openDevice(ctx context.Context, config *ChannelConfig) error {
	if config.RDMAAddress.IsValid() {
		device, err := c.relay.devices.at(ctx, config.RDMAAddress)
		if err != nil {
			return err
		}
		return c.checkDevices(ctx, config, device)
	}
	for _, target := range config.Targets {
		source, err := c.relay.config.Network.SourceAddress(target)
		if err != nil {
			c.attemptLog().Warn("no route to the target yet", zap.Stringer("target", target), zap.Error(err))
			continue
		}
		device, err := c.relay.devices.at(ctx, source)
		if err == nil {
			err = c.checkDevices(ctx, config, device)
		}
		if err != nil {
			return fmt.Errorf("%w (it has the source address %v of the route to target %v; "+
				"--rdma-address selects another)", err, source, target)
		}
	}
	return nil
}

func (c *channel) startSession(connection comch.Connection) {
	if err := c.relay.admit(); err != nil {
		c.rejected.Add(1)
		c.running.Go(func() {
			transport := c.relay.config.HookTransport(controlmsg.NewComchTransport(connection))
			controlmsg.NewResponder(transport, c.endpointConfig(c.log)).Close(err)
			connection.Abort()
		})
		return
	}
	s := newSession(c, connection)
	c.adopt(s)
	c.accepted.Add(1)
	c.running.Go(s.run)
}

// adopt adds a session with the rate limits of the current settings. From then on, reconfigure
// changes them.
func (c *channel) adopt(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sessions[s] = struct{}{}
	s.throttle.SetLimits(c.settings.Load().QoS.Session)
}

// limitSessions gives all sessions the rate limits of the current settings.
func (c *channel) limitSessions() {
	c.mu.Lock()
	defer c.mu.Unlock()
	limits := c.settings.Load().QoS.Session
	for s := range c.sessions {
		s.throttle.SetLimits(limits)
	}
}

// forget removes a session that has been released.
func (c *channel) forget(s *session) {
	c.mu.Lock()
	delete(c.sessions, s)
	c.mu.Unlock()
	c.relay.sessionCount.Add(-1)
}

// openSessions returns the sessions currently open, including those that have ended and are not
// released.
func (c *channel) openSessions() []*session {
	c.mu.Lock()
	defer c.mu.Unlock()
	sessions := make([]*session, 0, len(c.sessions))
	for s := range c.sessions {
		sessions = append(sessions, s)
	}
	return sessions
}

// close releases the channel. All its sessions must have ended. Those that are not released wait
// for no target any more, and stay so when ctx ends.
func (c *channel) close(ctx context.Context) error {
	c.stopLinks(errShuttingDown)
	c.linking.Wait()
	stop := context.AfterFunc(ctx, c.stopLate)
	c.late.Wait()
	stop()
	c.stopLate()
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	err := c.closeServer()
	if c.ownPool != nil { // no attempt to open the channel starts one any more
		err = errors.Join(err, c.ownPool.Stop())
	}
	return err
}

// ChannelError is why Reconfigure has not applied the configuration of a channel. The channel keeps
// its former settings; a new one is not added.
type ChannelError struct {
	// Index is the place of the channel in Settings.Channels.
	Index int
	Err   error
}

// Error returns the text of Err, which names the channel.
func (e *ChannelError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *ChannelError) Unwrap() error { return e.Err }

// Reconfigure changes the settings of a running relay. Open sessions keep the limits and timeouts
// that they started with, except rate limits (QoS), and the sessions of a removed channel continue
// until they end. The CPUs of a channel cannot change. Reconfigure joins a ChannelError for each
// channel whose configuration cannot work, with this build and these devices; that does not prevent
// the other changes, nor do devices that take long. A channel that cannot be opened yet, because of
// a device that is missing for instance, gets its settings, and tries again, as after New. Any
// other error means that nothing has changed. Reconfigure waits for Run and for other calls, or the
// end of ctx.
func (r *Relay) Reconfigure(ctx context.Context, settings Settings) error {
	settings, errs := settings.complete()
	select {
	case <-r.running:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case r.reconfiguring <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-r.reconfiguring }()
	defer r.reportReadiness()
	configured := make([]*channel, len(settings.Channels))
	for i := range settings.Channels {
		open := r.channelsOf(settings.Channels[i].ChannelID, false)
		if len(open) > 0 && !slices.Contains(configured, open[0]) {
			configured[i] = open[0]
		}
	}
	if err := r.publish(configured); err != nil {
		return err
	}
	r.applyLimits(&settings)
	var changing sync.WaitGroup
	for i, c := range configured {
		if c != nil && errs[i] == nil {
			changing.Go(func() { errs[i] = c.reconfigure(ctx, &settings.Channels[i]) })
		}
	}
	changing.Wait()
	r.addChannels(ctx, configured, settings.Channels, errs)
	var failed []error
	for i, err := range errs {
		if err != nil {
			failed = append(failed, &ChannelError{i, err})
		}
	}
	return errors.Join(failed...)
}

// addChannels creates the channels that configured does not have yet, and begins to serve each of
// them when the first attempt to open it has ended. It skips those with an error, and sets the
// errors of those that it cannot add.
func (r *Relay) addChannels(
	ctx context.Context, configured []*channel, configs []ChannelConfig, errs []error,
) {
	type outcome struct {
		place int
		added *channel
		err   error
	}
	outcomes, adding := make(chan outcome), 0
	for i, c := range configured {
		if c != nil || errs[i] != nil {
			continue
		}
		config := &configs[i]
		c := r.newChannel(config, r.channelsOf(config.ChannelID, true))
		adding++
		go func() { outcomes <- outcome{i, c, c.openFirst(ctx)} }()
	}
	for range adding {
		o := <-outcomes
		if o.err == nil {
			configured[o.place] = o.added
			if o.err = r.publish(configured); o.err != nil {
				configured[o.place] = nil
			}
		}
		if o.err != nil {
			errs[o.place] = errors.Join(o.err, o.added.close(ctx))
		}
	}
}

// channelsOf returns the channels with an id that have been removed, or have not.
func (r *Relay) channelsOf(id ChannelID, removed bool) []*channel {
	return slices.DeleteFunc(r.snapshot(),
		func(c *channel) bool { return c.id != id || c.isRemoved() != removed })
}

// publish makes the configured channels, of which nil ones are not open yet, those of the relay. It
// begins to serve new ones, and removes the others. It fails if the relay is not running any more.
func (r *Relay) publish(configured []*channel) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.serving.Err() != nil {
		return status.Errorf(status.BadState, "reconfigure: the relay is not running")
	}
	former := r.channels
	r.channels = nil
	for _, c := range configured {
		if c == nil {
			continue
		}
		r.channels = append(r.channels, c)
		if c.stop == nil {
			r.serveChannel(c)
		}
	}
	for _, c := range former {
		if slices.Contains(configured, c) {
			continue
		}
		r.channels = append(r.channels, c)
		if !c.isRemoved() {
			r.removeChannel(c)
		}
	}
	return nil
}

// reconfigure changes the settings, unless they cannot work, or what they name cannot be looked up.
// With devices that are missing, the channel waits for them.
func (c *channel) reconfigure(ctx context.Context, config *ChannelConfig) error {
	former := c.settings.Load()
	config.CPUs = former.CPUs
	known, missing := c.checkChange(ctx, former, config)
	isRefused := IsMisconfigured(missing) || known == nil && former.LookUp == nil
	if missing != nil && (isRefused || ctx.Err() != nil) {
		return fmt.Errorf("channel %v: %w", c.id, missing)
	}
	if known != nil {
		config = known
	}
	for !c.apply(former, config) {
		former = c.settings.Load() // which has looked up the former settings
	}
	if missing != nil {
		c.interrupt(missing)
	}
	signal(c.changed)
	c.throttle.SetLimits(config.QoS.Channel)
	c.limitSessions()
	for _, s := range c.openSessions() {
		for _, lane := range s.openLanes() {
			lane.Wake()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server == nil {
		return nil // the next server gets the new settings
	}
	if err := c.server.SetAdmission(c.admission(config)); err != nil {
		return fmt.Errorf("channel %v: %w", c.id, err)
	}
	return nil
}

// checkChange looks up what other settings name, and checks their devices as an attempt to open the
// channel does, unless they are the same. known is nil if nothing is known of what they name.
func (c *channel) checkChange(ctx context.Context, from, to *ChannelConfig) (known *ChannelConfig,
	missing error) {
	if to.LookUp == nil && from.hasSameDevices(to) {
		return to, nil
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	if c.checking.IsUnderWay() { // for former settings
		err := c.checking.Await(ctx)
		if c.checking.IsUnderWay() {
			return nil, err
		}
	}
	found := make(chan *ChannelConfig, 1)
	err := c.checking.Take(ctx, "check the devices", func() error {
		known, err := to.lookedUp(ctx)
		if err != nil {
			return err
		}
		found <- known
		if !from.hasSameDevices(known) {
			_, err = c.findDevices(ctx, known)
		}
		return err
	})
	select {
	case known = <-found:
	default:
	}
	return known, err
}

// hasSameDevices reports whether two configurations of a channel use the same devices.
func (c *ChannelConfig) hasSameDevices(other *ChannelConfig) bool {
	return c.RDMAAddress == other.RDMAAddress && c.Isolation == other.Isolation &&
		c.ImportDevice == other.ImportDevice && c.TargetProtocol == other.TargetProtocol &&
		slices.Equal(c.Targets, other.Targets)
}

// signal adds an element to a channel with room for one, unless it is full.
func signal(to chan<- struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// isRemoved reports whether the channel has been removed from the configuration.
func (c *channel) isRemoved() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.removed
}

// removeChannel stops accepting clients and releases the channel when its last session has ended.
// The caller holds r.mu.
func (r *Relay) removeChannel(c *channel) {
	c.mu.Lock()
	c.removed = true
	c.listening = ListenStatus{State: ChannelRetiring, Since: time.Now()}
	c.mu.Unlock()
	c.log.Info("channel removed; open sessions continue")
	c.stop()
	serving := r.serving
	r.serve.Go(func() {
		ended := make(chan struct{})
		go func() {
			<-c.served
			c.running.Wait()
			c.late.Wait()
			close(ended)
		}()
		select {
		case <-ended:
		case <-serving.Done():
			return
		}
		r.mu.Lock()
		r.channels = slices.DeleteFunc(r.channels, func(other *channel) bool { return other == c })
		r.mu.Unlock()
		if err := c.close(serving); err != nil {
			c.log.Error("cannot release the removed channel", zap.Error(err))
			return
		}
		c.log.Info("removed channel is released")
	})
}
