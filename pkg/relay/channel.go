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

	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// channel is a Comch service with its target and its sessions.
type channel struct {
	relay *Relay
	id    ChannelID
	log   *zap.Logger
	// settings are replaced as a whole; a session keeps those that it began
	// with.
	settings atomic.Pointer[ChannelConfig]
	link     *targetLink
	workers  *datapath.Pool
	ownPool  *datapath.Pool // nil if workers are the relay's
	retire   context.CancelFunc
	served   chan struct{} // closed when no more clients are accepted

	counters *datapath.CounterSet
	exported atomic.Int64 // bytes of client memory
	clients  *instanceRegistry
	accepted atomic.Uint64
	refused  atomic.Uint64
	running  sync.WaitGroup // sessions

	mu       sync.Mutex // guards what follows
	server   comch.Server
	sessions map[*session]struct{}
	retiring bool
}

func newChannel(r *Relay, config *ChannelConfig) *channel {
	c := &channel{
		relay: r, id: config.ChannelID, counters: r.countersOf(config.ChannelID), clients: newInstanceRegistry(),
		served: make(chan struct{}), sessions: make(map[*session]struct{}),
	}
	c.log = r.log.With(zap.String("channel", c.id.Name), zap.String("representor", c.id.Representor))
	c.settings.Store(config)
	c.link = newTargetLink(c)
	return c
}

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

// start makes the channel's own workers and its Comch server.
func (c *channel) start(ctx context.Context) error {
	config := c.settings.Load()
	if err := c.openDevice(config); err != nil {
		return err
	}
	c.workers = c.relay.pool
	if len(config.CPUs) > 0 {
		var err error
		if c.ownPool, err = datapath.StartPool(config.CPUs, c.relay.config.Policy); err != nil {
			return err
		}
		c.workers = c.ownPool
	}
	if c.workers == nil {
		return status.Errorf(status.InvalidValue, "it has no workers of its own, and there are no shared ones")
	}
	return c.listen(ctx)
}

// openDevice makes sure that the target's RDMA device can be used, if there
// is a way to the target already. If not, it is opened when there is.
func (c *channel) openDevice(config *ChannelConfig) error {
	if config.RDMAAddress.IsValid() {
		_, err := c.relay.devices.at(config.RDMAAddress)
		return err
	}
	source, err := sourceAddress(config.Target)
	if err != nil {
		c.log.Warn("there is no way to the target yet", zap.Error(err))
		return nil
	}
	if _, err = c.relay.devices.at(source); err != nil {
		return fmt.Errorf("%w (target %v is reached from %v; --rdma-address chooses another)", err, config.Target, source)
	}
	return nil
}

func (c *channel) listen(ctx context.Context) error {
	server, err := c.relay.config.Comch.Listen(ctx, comch.ServerConfig{
		Device: c.id.Device, Representor: c.id.Representor, Name: c.id.Name, Admission: c.settings.Load().admission(),
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server = server
	return nil
}

// listenPause is how long to wait before listening again on a device that has
// failed.
const listenPause = 5 * time.Second

// run serves the channel's clients until ctx ends. Sessions live on.
func (c *channel) run(ctx context.Context) {
	settings := c.settings.Load()
	c.log.Info("listening for clients", zap.String("comch", c.address()), zap.String("device", c.id.Device),
		zap.Stringer("target", settings.Target), zap.String("volume", settings.Volume))
	var linking sync.WaitGroup
	linking.Go(func() { c.link.run(ctx) })
	defer linking.Wait()
	for {
		err := c.acceptClients(ctx)
		if closeErr := c.closeServer(); closeErr != nil {
			c.log.Warn("close the Comch server", zap.Error(closeErr))
		}
		for ctx.Err() == nil && err != nil {
			c.log.Error("clients cannot connect", zap.Error(err), zap.Duration("next_in", listenPause))
			pause(ctx, listenPause)
			err = c.listen(ctx)
		}
		if ctx.Err() != nil {
			break
		}
	}
	_ = c.closeServer() // of a server that was made while the context ended
}

func (c *channel) acceptClients(ctx context.Context) error {
	c.mu.Lock()
	server := c.server
	c.mu.Unlock()
	for {
		connection, err := server.Accept(ctx)
		if ctx.Err() != nil {
			if connection != nil {
				connection.Abort()
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept Comch clients: %w", err)
		}
		c.startSession(connection)
	}
}

func (c *channel) startSession(connection comch.Connection) {
	if err := c.relay.admit(); err != nil {
		c.refused.Add(1)
		c.running.Go(func() { c.refuse(connection, err) })
		return
	}
	s := newSession(c, connection)
	c.mu.Lock()
	c.sessions[s] = struct{}{}
	c.mu.Unlock()
	c.accepted.Add(1)
	c.running.Go(func() {
		defer c.relay.sessionCount.Add(-1)
		s.run()
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.sessions, s)
	})
}

// refuse tells a client why it gets no session.
func (c *channel) refuse(connection comch.Connection, reason error) {
	c.newResponder(connection).Close(reason)
	connection.Abort()
}

// openSessions are the sessions of now.
func (c *channel) openSessions() []*session {
	c.mu.Lock()
	defer c.mu.Unlock()
	sessions := make([]*session, 0, len(c.sessions))
	for s := range c.sessions {
		sessions = append(sessions, s)
	}
	return sessions
}

func (c *channel) address() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server == nil {
		return ""
	}
	return c.server.Address()
}

func (c *channel) closeServer() error {
	c.mu.Lock()
	server := c.server
	c.server = nil
	c.mu.Unlock()
	if server == nil {
		return nil
	}
	return server.Close()
}

// close releases the channel, whose sessions have ended.
func (c *channel) close() error {
	err := c.closeServer()
	if c.ownPool != nil {
		err = errors.Join(err, c.ownPool.Stop())
	}
	return err
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// Reconfigure changes the settings of a relay that runs. Sessions that are
// open keep the limits and timeouts that they began with, and those of a
// channel that is removed go on until they end. The CPUs of a channel cannot
// be changed. A channel that cannot be added does not keep the rest from
// being applied.
func (r *Relay) Reconfigure(ctx context.Context, settings Settings) error {
	settings, err := settings.complete()
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.serving == nil || r.serving.Err() != nil {
		return status.Errorf(status.BadState, "reconfigure: the relay does not serve")
	}
	r.applyLimits(&settings)
	var errs []error
	former := r.channels
	r.channels = nil
	for i := range settings.Channels {
		config := &settings.Channels[i]
		c := takeChannel(&former, config.ChannelID)
		if c == nil {
			if c, err = r.newChannel(ctx, config); err != nil {
				errs = append(errs, err)
				continue
			}
			r.serveChannel(c)
		} else if err := c.reconfigure(config); err != nil {
			errs = append(errs, fmt.Errorf("channel %v: %w", config.ChannelID, err))
		}
		r.channels = append(r.channels, c)
	}
	for _, c := range former {
		r.retireChannel(c)
	}
	return errors.Join(errs...)
}

// takeChannel removes the serving channel of that name from a list.
func takeChannel(channels *[]*channel, id ChannelID) *channel {
	i := slices.IndexFunc(*channels, func(c *channel) bool { return c.id == id && !c.isRetiring() })
	if i < 0 {
		return nil
	}
	c := (*channels)[i]
	*channels = slices.Delete(*channels, i, i+1)
	return c
}

// reconfigure replaces the channel's settings.
func (c *channel) reconfigure(config *ChannelConfig) error {
	config.CPUs = c.settings.Load().CPUs
	c.settings.Store(config)
	signal(c.link.changed)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server == nil {
		return nil // it gets them when it listens again
	}
	return c.server.SetAdmission(config.admission())
}

func (c *channel) isRetiring() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.retiring
}

// retireChannel makes a channel take no more clients and releases it when its
// sessions have ended. The relay must be locked.
func (r *Relay) retireChannel(c *channel) {
	r.channels = append(r.channels, c)
	if c.isRetiring() {
		return
	}
	c.mu.Lock()
	c.retiring = true
	c.mu.Unlock()
	c.log.Info("channel is removed; its sessions may go on")
	c.retire()
	r.serve.Go(func() {
		if c.awaitSessions(r.serving) {
			r.forget(c)
		}
	})
}

// awaitSessions waits until the channel, which takes no more clients, has no
// more sessions; false means that ctx ended before.
func (c *channel) awaitSessions(ctx context.Context) bool {
	ended := make(chan struct{})
	go func() {
		<-c.served
		c.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return true
	case <-ctx.Done():
		return false
	}
}

// forget releases a channel that has no more sessions.
func (r *Relay) forget(c *channel) {
	r.mu.Lock()
	r.channels = slices.DeleteFunc(r.channels, func(other *channel) bool { return other == c })
	r.mu.Unlock()
	if err := c.close(); err != nil {
		c.log.Error("release the removed channel", zap.Error(err))
		return
	}
	c.log.Info("removed channel is released")
}
