// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/zc-relay/zc-relay/internal/devicecall"
	"github.com/zc-relay/zc-relay/pkg/comch"
	"github.com/zc-relay/zc-relay/pkg/datapath"
	"github.com/zc-relay/zc-relay/pkg/rdma"
	"github.com/zc-relay/zc-relay/pkg/retry"
	"github.com/zc-relay/zc-relay/pkg/status"
)

// openTimeout bounds an attempt to open a channel. It exceeds the time in which a device has to
// answer, whose error says more.
const openTimeout = 2 * devicecall.Timeout

// firstOpenTimeout bounds how long a start or a reload, and with it every other channel, waits for
// the first attempt, which then goes on in the background.
const firstOpenTimeout = 2 * time.Second

// run accepts the channel's clients until ctx ends. It opens the channel, and again after each
// failure, with rising pauses. Sessions continue, and so do the links to the targets: a target
// confirms there that a session has ended.
func (c *channel) run(ctx context.Context) {
	c.log.Debug("serving the channel")
	defer c.log.Debug("no longer serving the channel")
	c.linking.Go(func() { c.targets.Run(c.links) })
	defer close(c.unlisted)
	c.awaitName(ctx)
	for c.awaitAttempt(ctx) {
		if err := c.serveClients(ctx); err != nil && ctx.Err() == nil {
			c.failed(err)
			c.relay.onReadiness()
		}
	}
}

// serveClients opens the channel, unless it is open, and accepts clients until ctx ends. A server
// that lasts shorter than the pause after a failed attempt counts as one.
func (c *channel) serveClients(ctx context.Context) error {
	// An attempt that has outlasted its timeout may have opened the server.
	if c.address() == "" || c.opening.IsUnderWay() {
		if err := c.open(ctx, openTimeout); err != nil {
			return err
		}
	}
	c.setListening(ListenStatus{State: ChannelListening})
	c.relay.onReadiness()
	begun := time.Now()
	accepting, suspend := context.WithCancelCause(ctx)
	defer suspend(nil)
	c.mu.Lock()
	c.suspend = suspend
	c.mu.Unlock()
	err := c.acceptClients(accepting)
	if err == nil {
		err = context.Cause(accepting)
	}
	if closeErr := c.closeServer(); closeErr != nil {
		c.log.Warn("cannot close the Comch server", zap.Error(closeErr))
	}
	if c.schedule != nil && time.Since(begun) >= c.schedule.NextPause() {
		c.schedule = nil
	}
	return err
}

// interrupt closes the channel for clients, if it is open, until another attempt opens it.
func (c *channel) interrupt(reason error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.suspend != nil {
		c.suspend(reason)
	}
}

// openFirst makes the first attempt to open the channel. It fails if no other can succeed. It does
// nothing while a former channel may hold the name: then run makes the first attempt.
func (c *channel) openFirst(ctx context.Context) error {
	for _, former := range c.former {
		select {
		case <-former.unlisted:
		default:
			return nil
		}
	}
	err := c.open(ctx, firstOpenTimeout)
	if err == nil {
		c.setListening(ListenStatus{State: ChannelListening})
		return nil
	}
	if IsMisconfigured(err) || ctx.Err() != nil {
		return fmt.Errorf("channel %v: %w", c.id, err)
	}
	c.failed(err)
	return nil
}

// open opens the channel's devices and its Comch server. It waits for a device that does not answer
// no longer than its timeout: the next attempt waits for the same call.
func (c *channel) open(ctx context.Context, timeout time.Duration) error {
	waiting, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := c.opening.Take(waiting, "open the channel", func() error {
		ctx, cancel := context.WithTimeout(ctx, openTimeout)
		defer cancel()
		select {
		case <-c.changed: // this attempt knows
		default:
		}
		settings, err := c.lookUp(ctx)
		if err != nil {
			return err
		}
		if err := c.startWorkers(settings); err != nil {
			return err
		}
		maxClients, err := c.findDevices(ctx, settings)
		if err != nil {
			return err
		}
		return c.listen(ctx, maxClients)
	})
	if c.opening.IsUnderWay() && c.settings.Load().LookUp != nil {
		return status.Errorf(status.TimeOut, "the look-up of a name in the configuration has not ended")
	}
	return err
}

// findDevices opens the devices that a channel with these settings needs, and returns how many
// clients its Comch device supports.
func (c *channel) findDevices(ctx context.Context, settings *ChannelConfig) (maxClients int,
	err error) {
	capabilities, err := c.relay.config.Comch.Capabilities(c.id.Device)
	if err != nil {
		return 0, err
	}
	if err := c.openDevice(ctx, settings); err != nil {
		return 0, err
	}
	if settings.Isolation == Staged {
		_, err = c.relay.dmaDevices.at(ctx, c.id.Device)
	}
	return capabilities.MaxClients, err
}

// attemptLog returns the log for what every attempt to open the channel would say. Only the first
// attempt does.
func (c *channel) attemptLog() *zap.Logger {
	if c.listenStatus().Attempt > 0 {
		return zap.NewNop()
	}
	return c.log
}

// failed schedules the next attempt to open the channel. The log has each reason once, until it
// changes or clients can connect again.
func (c *channel) failed(reason error) {
	if c.schedule == nil {
		policy := c.settings.Load().Reconnect
		policy.Attempts, policy.Total = retry.AnyNumber(), retry.Forever()
		c.schedule = policy.Begin(time.Now())
		_, _ = c.schedule.Next(time.Now()) // it has been made
	}
	attempt := c.schedule.Attempt()
	pause, _ := c.schedule.Next(time.Now()) // has no end
	level, former := zap.WarnLevel, c.listenStatus().LastError
	if former != nil && former.Error() == reason.Error() {
		level = zap.DebugLevel
	}
	c.log.Log(level, "clients cannot connect: the relay tries again to open the channel",
		zap.Error(reason), zap.Int("attempt", attempt), zap.Duration("next_in", pause))
	c.setListening(ListenStatus{State: ChannelWaiting, LastError: reason, Attempt: attempt,
		NextAttempt: time.Now().Add(pause).UTC()})
}

// awaitAttempt waits until the next attempt to open the channel is due, or the settings change. It
// returns false if ctx ends.
func (c *channel) awaitAttempt(ctx context.Context) bool {
	due := c.listenStatus().NextAttempt
	if due.IsZero() {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-c.changed:
		c.schedule = nil
	case <-timer.C:
	}
	return true
}

// awaitName waits until no former channel holds the name. A reload that adds a removed channel
// again may follow so soon that the removed one is still closing its server.
func (c *channel) awaitName(ctx context.Context) {
	for _, former := range c.former {
		select {
		case <-former.unlisted:
		case <-ctx.Done():
			return
		}
	}
	c.former = nil
}

// acceptClients accepts clients until ctx ends.
func (c *channel) acceptClients(ctx context.Context) error {
	settings := c.settings.Load()
	c.log.Info("listening for clients", zap.String("comch", c.address()),
		zap.String("device", c.id.Device),
		zap.Stringers("targets", settings.Targets), zap.String("volume", settings.Volume))
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

// listen creates the channel's Comch server, whose device supports maxClients.
func (c *channel) listen(ctx context.Context, maxClients int) error {
	settings := c.settings.Load()
	c.mu.Lock()
	c.maxClients = maxClients
	admission := c.admission(settings)
	c.mu.Unlock()
	server, err := c.relay.config.Comch.Listen(ctx, comch.ServerConfig{
		Device: c.id.Device, Representor: c.id.Representor, Name: c.id.Name, Admission: admission,
	})
	if err != nil {
		return err
	}
	if admission.MaxClients < settings.Limits.MaxSessions {
		c.log.Warn("the Comch device supports fewer clients than limits.sessions allows",
			zap.Int("supported", admission.MaxClients),
			zap.Int("limit", settings.Limits.MaxSessions))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.removed {
		return errors.Join(status.Errorf(status.Shutdown, "the channel is closed"), server.Close())
	}
	c.server = server
	if now := c.settings.Load(); now != settings {
		return server.SetAdmission(c.admission(now))
	}
	return nil
}

// admission returns what the channel's Comch server enforces. The caller holds c.mu.
func (c *channel) admission(settings *ChannelConfig) comch.Admission {
	admission := settings.admission()
	admission.MaxClients = min(admission.MaxClients, c.maxClients)
	return admission
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

// checkDevices fails if a target behind an RDMA device cannot reach the channel's clients.
func (c *channel) checkDevices(ctx context.Context, config *ChannelConfig,
	device rdma.Device) error {
	paths, err := c.memoryPaths(config, device)
	if err != nil || paths[0] != PathStaged {
		return err
	}
	if config.Isolation != Staged {
		c.attemptLog().Warn("the RDMA device cannot reach the memory of clients: their data is "+
			"copied through memory of the relay (limits.bounce_memory), which costs throughput; "+
			"rdma_address can select another device, and isolation: staged ends this warning",
			zap.Stringer("rdma_device", device.Capabilities().Device))
	}
	_, err = c.relay.dmaDevices.at(ctx, c.id.Device)
	return err
}
